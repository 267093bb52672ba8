/**
 * The session on a page: its runs as kept by the server, and their later events. Events are folded immediately, and
 * listeners are called once per frame.
 */
import type * as Event from "../../Event.ts"
import * as Client from "./client.ts"
import * as Fold from "./fold.ts"

/** A run of the session, with its first message. */
export interface Shown {
  readonly run: Fold.Run
  /** Run version: the run changes in place. */
  readonly version: number
  /** The run combined with the runs it continues after answers. Absent unless it continues a run. */
  readonly whole?: Fold.Run
  /** `true` for a run continued by another, which includes it in `whole`. */
  readonly isContinued: boolean
  /** Message beginning the run. Absent for a run continuing after answers. */
  readonly message?: Client.Submitted
  /** `true` for part of the session's initial conversation, without times. */
  readonly isKept: boolean
}

/** A message without a run. */
export interface Letter extends Client.Submitted {
  /** Fate so far. Absent until the server has accepted the message. */
  readonly fate?: "waiting" | "withdrawn" | "refused"
  /** Reason for its refusal. */
  readonly reason?: string
  /** `true` if this page sent the message. */
  readonly isOwn?: boolean
}

/** Tells whether a message has its fate, without a run to take it. */
const isSettled = ({ fate }: Letter): boolean => fate === "withdrawn" || fate === "refused"

/** Part of a session shown on the page. */
export interface Snapshot {
  readonly agent: string
  readonly id: string
  /** `new` until its first message is sent, `loading` until first read, `gone` if it no longer exists. */
  readonly state: "new" | "loading" | "ready" | "gone"
  /** Runs, oldest first. */
  readonly shown: ReadonlyArray<Shown>
  /** Messages without a run, oldest first: those waiting, and those withdrawn or refused since the last run. */
  readonly waiting: ReadonlyArray<Letter>
  readonly session: Client.KeptSession | undefined
  /** The run under way. */
  readonly running: Fold.Run | undefined
  /** Calls waiting for an answer. */
  readonly suspensions: ReadonlyArray<Event.PublicSuspension>
  /** `true` if the last run failed, and can be retried. */
  readonly isFailed: boolean
  readonly hasOlder: boolean
  readonly isStopping: boolean
  /** Outcome of each call in the last stopped run. */
  readonly report: Client.StopReport | undefined
  /** Sentence about the connection, or about a refused request. */
  readonly notice: string
  /** `true` if only the journal tells of the run under way, and has been quiet for a while. */
  readonly isSilent: boolean
}

interface Entry {
  run: Fold.Run
  whole?: Fold.Run
  message?: Client.Submitted
  isKept: boolean
  /** The run as repeated by a stream, until it has caught up with `run`. */
  next?: Fold.Run
}

/** First and longest pause in milliseconds before reconnecting. */
const [firstPause, longestPause] = [500, 10_000]

/** Runs per page. */
const pageSize = 20

/** Time in milliseconds without an event before a run told only by the journal counts as silent. */
const silence = 3_000

const [deleted, missing] = ["This chat was deleted.", "There is no chat at this address."]

const sentenceOf = (error: unknown): string => error instanceof Error ? error.message : "The request has failed."

/** Sentence about refused answers, and the id of the answer concerned. */
export type Unanswered = string | { readonly id: string; readonly sentence: string }

/** Timing of a page. */
export interface Timing {
  /** Calls a function before the next frame, even on a page not being drawn. */
  readonly frame: (change: () => void) => void
  readonly pause: (millis: number) => Promise<void>
}

const ofPage: Timing = {
  frame: (change) => {
    if (document.visibilityState === "visible") requestAnimationFrame(change)
    else setTimeout(change, 250)
  },
  pause: (millis) => new Promise((resolve) => setTimeout(resolve, millis))
}

/** Returns the waits of calls in a run under way. They may be answered in advance. */
const waitingIn = (run: Fold.Run): ReadonlyArray<Event.PublicSuspension> =>
  run.counts.asks === 0 ?
    [] :
    Array.from(run.calls.values()).flatMap(({ decided, suspension }) => decided === undefined ? suspension ?? [] : [])

/** Run outcomes after which another run can continue. */
const waits: ReadonlySet<string | undefined> = new Set(["AskUser", "ApprovalRequested", "ManualToolCalls"])

/** Copies a run continued by the next after answers. */
const continued = (before: Entry | undefined): { readonly whole?: Fold.Run } =>
  before !== undefined && waits.has(before.run.outcome?._tag)
    ? { whole: structuredClone(before.whole ?? before.run) }
    : {}

/** Marks earlier runs' calls as answered or carried on by a run. */
const settleAll = (run: Fold.Run, runs: ReadonlyArray<Fold.Run>, place: number): void => {
  const carried = Array.from(run.calls.values()).flatMap((call) => Fold.carriedOn(call) ?? [])
  for (const settled of [...run.settled, ...carried]) {
    for (const earlier of runs.slice(0, place)) Fold.settle(earlier, settled)
  }
}

/** A session, from its first showing until another is shown. */
export class Session {
  readonly agent: string
  readonly id: string
  private readonly client: Client.Client
  private readonly onChange: () => void
  private readonly timing: Timing
  private readonly abort = new AbortController()
  private readonly entries = new Map<string, Entry>()
  private readonly listeners = new Set<() => void>()
  private waiting: ReadonlyArray<Letter> = []
  private session: Client.KeptSession | undefined
  private suspensions: ReadonlyArray<Event.PublicSuspension> = []
  private state: Snapshot["state"]
  private running: string | undefined
  private notice = ""
  /** Notice that an answer did not reach the server, until the server is reached. */
  private unreached: string | undefined
  private isStopping = false
  private report: Client.StopReport | undefined
  private older: string | undefined
  private reading: Promise<void> | undefined
  private lastId: string | undefined
  private deletion: Promise<unknown> | undefined
  private isTold = true
  /** `true` until the first run in a stream beginning with the current run. */
  private isAnew = false
  private isSilent = false
  private isListening = false
  /** `true` if the last event came from the journal, rather than from the process driving the run. */
  private isKept = false
  /** Counts events, so that a pause can tell whether any arrived. */
  private heard = 0
  /** Ids of answers given since the last run began. */
  private readonly given = new Set<string>()
  private snapshot: Snapshot

  /** `onChange` is called if the session list may have changed. */
  constructor(
    client: Client.Client,
    agent: string,
    id: string | undefined,
    onChange: () => void,
    timing = ofPage
  ) {
    this.client = client
    this.timing = timing
    this.agent = agent
    this.id = id ?? Client.newId()
    this.onChange = onChange
    this.state = id === undefined ? "new" : "loading"
    this.snapshot = this.take()
  }

  /** Begins reading the session. */
  open(): void {
    if (this.state === "loading") void this.follow()
  }

  /** Ends the session's requests to the server. */
  close(): void {
    this.abort.abort()
    this.listeners.clear()
  }

  readonly subscribe = (listener: () => void): () => void => {
    this.listeners.add(listener)
    return () => void this.listeners.delete(listener)
  }

  /** Returns the shown state: the same object until a frame has changed it. */
  readonly read = (): Snapshot => this.snapshot

  private get isClosed(): boolean {
    return this.abort.signal.aborted
  }

  private take(): Snapshot {
    const entries = Array.from(this.entries.values())
    const shown = entries.map(({ isKept, message, run, whole }, place): Shown => ({
      run,
      version: run.version,
      ...(whole === undefined ? {} : { whole }),
      isContinued: entries[place + 1]?.whole !== undefined,
      isKept,
      ...(message === undefined ? {} : { message })
    }))
    const last = shown.at(-1)?.run
    const running = this.running === undefined ? undefined : this.entries.get(this.running)?.run
    return {
      agent: this.agent,
      id: this.id,
      state: this.state,
      shown,
      waiting: this.waiting,
      session: this.session,
      running,
      suspensions: (running === undefined ? this.suspensions : waitingIn(running)).filter(({ id }) =>
        !this.given.has(id)
      ),
      isFailed: running === undefined && last?.outcome?._tag === "Failed",
      hasOlder: this.older !== undefined,
      isStopping: this.isStopping,
      report: this.report,
      notice: this.notice,
      isSilent: this.isSilent && running !== undefined
    }
  }

  /** Calls the listeners, once before the next frame. */
  private tell(): void {
    if (!this.isTold || this.isClosed) return
    this.isTold = false
    this.timing.frame(() => {
      this.isTold = true
      this.snapshot = this.take()
      for (const listener of this.listeners) listener()
    })
  }

  private note(notice: string): void {
    this.notice = notice
    this.tell()
  }

  // Reading.

  /** Folds a run as kept by the server, unless the page's own copy has more. */
  private keep({ events, message, runId, startedAt }: Client.KeptRun, before: Entry | undefined): Entry {
    const known = this.entries.get(runId)
    const entry = known ?? { run: Fold.make(runId, startedAt), isKept: startedAt === undefined }
    if (message !== undefined) entry.message = message
    const isFolded = known === undefined || known.run.version === 0
    if (isFolded || known.run.end === undefined && known.run.id !== this.running) {
      const run = Fold.make(runId, startedAt)
      for (const event of events) Fold.take(run, event)
      // A session's initial conversation has no run ends.
      if (startedAt === undefined) run.end ??= run.now
      if (isFolded || run.end !== undefined) {
        entry.run = run
        const { whole } = continued(before)
        for (const event of whole === undefined ? [] : events) Fold.take(whole as Fold.Run, event)
        if (whole !== undefined) entry.whole = whole
      }
    }
    return entry
  }

  /** Merges a runs page: the newest runs, or those before the known ones. */
  private merge({ before, runs, session }: Client.RunsPage, isOlder: boolean): void {
    const known = Array.from(this.entries)
    const place = known.findIndex(([id]) => id === runs[0]?.runId)
    let last = isOlder ? undefined : known.at(place < 0 ? -1 : place - 1)?.[1]
    if (place === 0) last = undefined
    const kept = runs.map((run) => [run.runId, last = this.keep(run, last)] as const)
    if (isOlder) {
      const later = Array.from(this.entries)
      this.entries.clear()
      for (const [id, entry] of [...kept, ...later]) this.entries.set(id, entry)
      this.older = before
    } else {
      const isFirst = this.entries.size === 0
      for (const [id, entry] of kept) this.entries.set(id, entry)
      if (isFirst) this.older = before
    }
    const all = Array.from(this.entries.values(), ({ run }) => run)
    for (const [place, run] of all.entries()) settleAll(run, all, place)
    for (const { id, verdict } of session.decided ?? []) this.decide(id, verdict)
    this.session = session
    this.suspensions = session.suspensions
    const had = new Set(
      Array.from(this.entries.values(), ({ message, run }) => [message?.id, ...run.sent.map(({ id }) => id)]).flat()
    )
    const submitted = (session.submitted ?? []).filter(({ id }) => !had.has(id)).map((message): Letter => ({
      ...this.waiting.find(({ id }) => id === message.id),
      ...message,
      fate: "waiting"
    }))
    const others = this.waiting.filter(({ id }) => !had.has(id) && !submitted.some((other) => other.id === id))
    this.waiting = [...submitted, ...others]
    if (!isOlder) { for (const { fate, id } of others) if (fate === "waiting") void this.find(id) }
  }

  /** Stores the fate of a waiting message. */
  private settle(message: string, { became, reason }: Client.Fate): void {
    if (became !== "withdrawn" && became !== "refused") return
    this.waiting = this.waiting.map((letter) =>
      letter.id === message ? { ...letter, fate: became, ...(reason === undefined ? {} : { reason }) } : letter
    )
    this.tell()
  }

  /** Finds out the fate of a message no longer waiting and unknown to every run. */
  private async find(message: string): Promise<void> {
    // A run's events report the fate of a message it took.
    await this.client.fate(this.agent, this.id, message).then((fate) => this.settle(message, fate), () => {})
  }

  /** Reads the session again: its facts, and runs that ended without an open stream. */
  private async refresh(limit: number): Promise<void> {
    const page = await this.client.runs(this.agent, this.id, { limit, signal: this.abort.signal })
    this.merge(page, false)
    this.state = "ready"
    this.tell()
  }

  /** Reads the runs before the known ones. */
  readonly readOlder = (): Promise<void> => {
    const { older } = this
    if (older === undefined) return Promise.resolve()
    this.reading ??= this.client.runs(this.agent, this.id, {
      before: older,
      limit: pageSize,
      signal: this.abort.signal
    })
      .then((page) => {
        // A session's facts come from its newest page.
        const { session = page.session, suspensions, waiting } = this
        this.merge({ ...page, session }, true)
        this.suspensions = suspensions
        this.waiting = waiting
        this.tell()
      }, (error) => this.note(sentenceOf(error)))
      .finally(() => void (this.reading = undefined))
    return this.reading
  }

  /** Follows the session until another is shown, reconnecting after failures. */
  private async follow(): Promise<void> {
    let pause = firstPause
    while (!this.isClosed) {
      try {
        const response = await this.client.events(this.agent, this.id, this.lastId, this.abort.signal)
        this.isAnew = this.lastId === undefined
        // The stream does not contain a run that ended before the stream opened.
        await this.refresh(pageSize)
        if (this.lastId === undefined) {
          const last = Array.from(this.entries.values()).at(-1)?.run
          this.running = last !== undefined && last.end === undefined ? last.id : undefined
        }
        this.note("")
        pause = firstPause
        for await (const frame of Client.frames(response)) {
          if (this.isClosed) return
          this.receive(frame)
        }
      } catch (error) {
        if (this.isClosed) return
        const status = error instanceof Client.Refused ? error.status : 0
        if (status === 400 && this.lastId !== undefined) {
          this.lastId = undefined
        } else if (status === 400 || status === 404) {
          await this.deletion
          if (this.isClosed) return
          // The address of a session never shown may be wrong.
          this.notice = this.state === "ready" ? deleted : missing
          this.state = "gone"
          this.running = undefined
          return this.tell()
        } else {
          const why = status > 0 ? ` ${sentenceOf(error)}` : ""
          this.note(`The connection is lost.${why} Trying again…`)
        }
      }
      await this.timing.pause(pause)
      // This page's deletion may end the stream before its own answer arrives.
      await this.deletion
      pause = Math.min(pause * 2, longestPause)
    }
  }

  /** Waits until no event has arrived for a while, and then marks a run told only by the journal as silent. */
  private async listen(): Promise<void> {
    if (this.isListening) return
    this.isListening = true
    let before: number
    do {
      before = this.heard
      await this.timing.pause(silence)
    } while (before !== this.heard && !this.isClosed)
    this.isListening = false
    this.isSilent = this.isKept
    this.tell()
  }

  private receive({ data, event: kind, id }: Client.Frame): void {
    const event = JSON.parse(data)
    this.heard++
    this.isSilent = false
    // The middle of an offset is the journal version at the run's start or resumption. Journal events have 0 there.
    this.isKept = id?.split(".").at(-2) === "0"
    if (this.isKept) void this.listen()
    if (id !== undefined) this.lastId = id
    if (kind === "error") return this.note(String(event.error?.message))
    if (kind === "reset") return this.again(event.runId)
    this.push(event)
    this.tell()
  }

  /** Begins to fold a run again, as repeated by the stream from its beginning. Until then the shown state stays. */
  private again(runId: string): void {
    const entry = this.entries.get(runId)
    if (entry !== undefined) entry.next = Fold.make(runId)
    this.running = runId
  }

  private push(event: Fold.Told): void {
    if (event._tag === "RunStarted") this.begin(event.runId)
    const entry = this.running === undefined ? undefined : this.entries.get(this.running)
    if (entry === undefined) return
    const { next } = entry
    const run = next ?? entry.run
    const answered = run.settled.length
    if (event._tag === "MessageDelivered" || event._tag === "MessageRefused") {
      this.waiting = this.waiting.filter(({ id }) => id !== event.id)
    }
    Fold.take(run, event)
    if (next === undefined && entry.whole !== undefined) Fold.take(entry.whole, event)
    const named = "toolCallId" in event ? event.toolCallId : "id" in event ? event.id : undefined
    const call = typeof named === "string" ? run.calls.get(Fold.pathOf("", named)) : undefined
    const settled = run.settled.length > answered
      ? run.settled.at(-1)
      : call === undefined
      ? undefined
      : Fold.carriedOn(call)
    if (settled !== undefined) {
      for (const other of this.entries.values()) if (other.run !== run) Fold.settle(other.run, settled)
    }
    if (next !== undefined && (next.end !== undefined || next.now >= entry.run.now)) {
      entry.run = next
      delete entry.next
      // The combined run lacks the repeated events.
      delete entry.whole
    }
    if (event._tag === "ChatCompleted") this.complete(run)
  }

  private begin(runId: string): void {
    const known = this.entries.get(runId)
    this.report = undefined
    this.suspensions = []
    if (runId !== this.running) this.given.clear()
    this.running = runId
    if (known === undefined) {
      const [message, ...others] = this.waiting.filter((letter) => !isSettled(letter))
      const whole = continued(Array.from(this.entries.values()).at(-1))
      this.entries.set(runId, {
        run: Fold.make(runId),
        ...whole,
        isKept: false,
        ...(message === undefined ? {} : { message })
      })
      this.waiting = this.waiting.filter((letter) => letter !== message)
      // The stream neither contains another page's message, nor tells which of several it was.
      if (message === undefined || others.length > 0) void this.refresh(3).catch(() => {})
    } else if (this.isAnew && known.run.version > 0) known.next = Fold.make(runId)
    this.isAnew = false
    this.onChange()
  }

  private complete(run: Fold.Run): void {
    if (this.running === run.id) this.running = undefined
    this.suspensions = run.suspensions
    this.onChange()
    void this.refresh(1).catch(() => {})
  }

  // Writing.

  /** Sends a request, and shows the reason for a refusal. Succeeds with the refusal sentence, if any. */
  async attempt(sent: () => Promise<string | undefined | void>): Promise<string | undefined> {
    const refused = await sent().catch(sentenceOf)
    this.note(refused ?? "")
    return refused ?? undefined
  }

  /** Sends a message to the destination `mode`. Succeeds with a sentence if refused. */
  async send(content: string, mode?: Client.Mode): Promise<string | undefined> {
    const said = { id: Client.newId(), content, ...(mode === undefined ? {} : { mode }) }
    this.waiting = [...this.waiting.filter((letter) => !isSettled(letter)), { ...said, isOwn: true }]
    this.tell()
    const refused = await this.attempt(() => this.client.say(this.agent, this.id, said))
    if (refused !== undefined) {
      this.waiting = this.waiting.filter(({ id }) => id !== said.id)
      this.tell()
      return refused
    }
    this.waiting = this.waiting.map((letter) => letter.id === said.id ? { ...letter, fate: "waiting" } : letter)
    this.tell()
    if (this.state === "new") {
      this.state = "loading"
      void this.follow()
    }
    this.onChange()
    return undefined
  }

  /** Withdraws a message. Succeeds with a sentence if refused, or too late. */
  async withdraw(message: string): Promise<string | undefined> {
    return await this.attempt(async () => {
      const fate = await this.client.withdraw(this.agent, this.id, message)
      this.settle(message, fate)
      return fate.became === "withdrawn"
        ? undefined
        : "This message was not withdrawn: a run has already taken or refused the message."
    })
  }

  /** Marks a call of the last run as decided. */
  private decide(path: string, decision: Fold.Decision): void {
    const last = Array.from(this.entries.values()).at(-1)
    if (last !== undefined) Fold.decide(last.run, path, decision)
  }

  /**
   * Answers waiting calls. Succeeds with a sentence if the answers were refused and the calls still wait. If an answer
   * was refused because its call no longer waits, or failed to reach the server, its sentence becomes the notice. A
   * refusal of one answer among several has its id.
   */
  async answer(answers: ReadonlyArray<Client.Answer>): Promise<Unanswered | undefined> {
    try {
      await this.client.answer(this.agent, this.id, answers)
    } catch (error) {
      const sentence = sentenceOf(error)
      const isReached = error instanceof Client.Refused && error.status > 0
      if (isReached) await this.look()
      const ids = new Set(this.take().suspensions.map(({ id }) => id))
      if (isReached && answers.every(({ id }) => ids.has(id))) {
        return error.id === undefined ? sentence : { id: error.id, sentence }
      }
      this.unreached = isReached ? undefined : sentence
      this.note(sentence)
      return undefined
    }
    for (const { approve, id } of answers) {
      this.given.add(id)
      this.decide(Fold.suspended({ id }), approve === undefined ? "answered" : approve ? "approved" : "denied")
    }
    this.tell()
    return undefined
  }

  /** Reads the session again, after possible changes by another page without a run. */
  readonly look = async (): Promise<void> => {
    try {
      await this.refresh(1)
      if (this.unreached === this.notice) this.note("")
      this.unreached = undefined
    } catch {
      // The page keeps its content, and reads the session again later.
    }
  }

  /** Stops the run under way. */
  async stop(): Promise<void> {
    if (this.running === undefined || this.isStopping) return
    this.isStopping = true
    this.tell()
    await this.attempt(async () => void (this.report = await this.client.stop(this.agent, this.id)))
    this.isStopping = false
    this.tell()
  }

  /** Stops one call of the run under way, by its path. */
  async stopCall(path: string): Promise<void> {
    await this.attempt(() => this.client.stopCall(this.agent, this.id, path))
  }

  /** Requires approval again for a tool's calls previously allowed for the session. */
  async forget(tool: string): Promise<void> {
    await this.attempt(() => this.client.forget(this.agent, this.id, tool))
    await this.learn()
  }

  /** Reads the session facts again, such as its title. */
  async learn(): Promise<void> {
    await this.refresh(1).catch(() => {})
  }

  /** Retries the failed run. */
  async retry(): Promise<void> {
    await this.attempt(() => this.client.retry(this.agent, this.id))
  }

  /** Deletes the session. Succeeds with a sentence if refused. */
  async remove(): Promise<string | undefined> {
    const deletion = this.attempt(() => this.client.remove(this.agent, this.id))
    this.deletion = deletion.then((refused) => refused === undefined ? this.close() : undefined)
    return await deletion
  }
}
