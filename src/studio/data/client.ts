/**
 * Requests to the page's server. The page asks for a token if the server requires authorization. Only this object holds
 * the token, until the page closes.
 */
import type * as Event from "../../Event.ts"
import type * as Message from "../../Message.ts"
import type { Decision, Told } from "./fold.ts"

/** A request refused by the server, or not reaching the server. */
export class Refused extends Error {
  /** HTTP status. 0 if the server was not reached. */
  readonly status: number
  readonly code: string
  /** Id of the refused call. */
  readonly id: string | undefined

  constructor(status: number, code: string, message: string, id?: string) {
    super(message)
    this.status = status
    this.code = code
    this.id = id
  }
}

/** An agent of the server. */
export interface Agent {
  readonly name: string
  readonly description: string
}

/** A tool of an agent. */
export interface ToolFacts {
  readonly name: string
  readonly description: string
  readonly readOnly: boolean
  readonly destructive: boolean
  readonly openWorld: boolean
  readonly approval: "always" | "sometimes" | "never"
  /** Name of the agent behind the tool. */
  readonly agent?: string
}

/** An agent, as shown before the first message. */
export interface Facts extends Agent {
  readonly model?: string
  readonly provider?: string
  readonly examples?: ReadonlyArray<string>
  readonly tools?: ReadonlyArray<ToolFacts>
}

/** A session in a list. */
export interface Listed {
  readonly id: string
  readonly agent: string
  readonly title: string
  readonly lastLine: string
  readonly status: string
  readonly next: string
  readonly updatedAt: number
  readonly pinned?: boolean
  readonly forkedFrom?: { readonly id: string }
}

/** A page of a list. */
export interface ListPage {
  readonly sessions: ReadonlyArray<Listed>
  /** Place where the next page begins. */
  readonly next?: string
}

/** A message of the user. */
export interface Said {
  readonly id: string
  readonly content: Message.Content
}

/** Message destination: the current run's next turn, its end, or the next run. */
export type Mode = "steer" | "follow" | "next"

/** A message not yet taken by a run. */
export interface Submitted extends Said {
  /** Requested destination. Absent for the next run. */
  readonly mode?: Mode
}

/** The outcome of a message. */
export interface Fate {
  readonly became: string
  /** Reason for a refusal. */
  readonly reason?: string
}

/** A run as kept by the server. */
export interface KeptRun {
  readonly runId: string
  /** Message beginning the run. Absent for a run continuing after answers. */
  readonly message?: Submitted
  readonly startedAt?: number
  readonly events: ReadonlyArray<Told>
}

/** A session as kept by the server. */
export interface KeptSession {
  readonly title: string
  readonly next: string
  readonly status: string
  readonly forkedFrom?: { readonly id: string; readonly version: number; readonly message: string }
  readonly forks: ReadonlyArray<{ readonly id: string; readonly message: string }>
  readonly allowed: ReadonlyArray<{ readonly name: string }>
  readonly submitted?: ReadonlyArray<Submitted>
  /** `true` if the principal may withdraw a waiting message. */
  readonly canWithdraw?: boolean
  readonly suspensions: ReadonlyArray<Event.PublicSuspension>
  /** Calls decided while others wait, by path. */
  readonly decided?: ReadonlyArray<{ readonly id: string; readonly verdict: Decision }>
}

/** Runs of a session, oldest first. */
export interface RunsPage {
  readonly session: KeptSession
  readonly runs: ReadonlyArray<KeptRun>
  /** The run before which the next page ends. Absent for the session's first runs. */
  readonly before?: string
}

/** An answer to a waiting call. */
export interface Answer {
  readonly id: string
  readonly value?: unknown
  readonly error?: string
  readonly approve?: boolean
  readonly arguments?: unknown
  readonly reason?: string
  readonly remember?: "tool" | "arguments"
}

/** Calls in a stopped run by outcome, as call ids. */
export interface StopReport {
  readonly ended?: ReadonlyArray<string>
  readonly refused?: ReadonlyArray<string>
  readonly stopped?: ReadonlyArray<string>
  readonly unknown?: ReadonlyArray<string>
}

/** A frame of an event stream. */
export interface Frame {
  readonly event: string
  readonly id: string | undefined
  readonly data: string
}

/** The need for a token. */
export interface Login {
  readonly isAsked: boolean
  /** Sentence beside the field. */
  readonly note: string
  /** `true` if the server accepted a token before: the page keeps its content. */
  readonly isAgain: boolean
}

interface Sent {
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal | undefined
}

const firstNote = "The server asks for a token. Only this page keeps the token, until the page is closed."
const wrongNote = "The server did not accept the token. Try another token."
const overNote = "The server no longer accepts the token. Enter another token to continue."

/** Returns a new random id. `randomUUID` is missing on pages from another machine without TLS. */
export const newId = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")

const refusalOf = async (response: Response): Promise<Refused> => {
  const fallback = `The server answered with status ${response.status}.`
  try {
    const { error } = await response.json()
    const id = typeof error.id === "string" ? error.id : undefined
    return new Refused(response.status, String(error.code), String(error.message), id)
  } catch {
    return new Refused(response.status, "unknown", fallback)
  }
}

/** Maximum time in milliseconds for a burst of events to keep the page from drawing and from handling keys. */
const burst = 12

/** Gives the browser time for a frame and for keys. */
const breathe = (): Promise<void> =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel()
    port1.addEventListener("message", () => {
      port1.close()
      resolve()
    })
    port1.start()
    port2.postMessage(0)
  })

const frameOf = (text: string): Frame => {
  const frame = { event: "message", id: undefined as string | undefined, data: [] as Array<string> }
  for (const line of text.split("\n")) {
    if (line.startsWith("data: ")) frame.data.push(line.slice(6))
    else if (line.startsWith("id: ")) frame.id = line.slice(4)
    else if (line.startsWith("event: ")) frame.event = line.slice(7)
  }
  return { ...frame, data: frame.data.join("\n") }
}

/** Reads the frames of an event stream. A frame may have megabytes, but each character is examined once. */
export const frames = async function*(response: Response): AsyncGenerator<Frame> {
  const reader = (response.body ?? new ReadableStream<BufferSource>()).pipeThrough(new TextDecoderStream()).getReader()
  let held: Array<string> = []
  let since = performance.now()
  try {
    while (true) {
      const { done, value } = await reader.read()
      if (done) return
      let rest = value
      while (rest !== "") {
        // The empty line ending a frame may be split in the middle.
        const isCut = held.at(-1)?.endsWith("\n") === true && rest.startsWith("\n")
        const end = isCut ? 0 : rest.indexOf("\n\n")
        if (end < 0) {
          held.push(rest)
          break
        }
        held.push(rest.slice(0, end))
        rest = rest.slice(isCut ? 1 : end + 2)
        const frame = frameOf(held.join(""))
        held = []
        if (frame.data !== "") yield frame
        if (performance.now() - since < burst) continue
        await breathe()
        since = performance.now()
      }
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}

/** Returns the query part of an address, with the values present. */
const queryOf = (values: Readonly<Record<string, string | number | undefined>>): string => {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== "")
  return given.length === 0 ? "" : `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`
}

/** Returns the path to an agent's sessions, or to one session. */
const pathOf = (agent: string, id?: string, rest = ""): string =>
  `agents/${encodeURIComponent(agent)}/sessions${id === undefined ? "" : `/${encodeURIComponent(id)}${rest}`}`

/** Sends a request, like `fetch`. */
export type Send = (address: string, request: RequestInit) => Promise<Response>

/** Server of a page. */
export class Client {
  private readonly root: string
  private readonly send: Send
  private token: string | undefined
  private isGood = false
  private isLetIn = false
  private asking: Promise<void> | undefined
  private give: () => void = () => {}
  private readonly listeners = new Set<() => void>()
  private state: Login = { isAsked: false, note: firstNote, isAgain: false }

  /** `root` is the server address, relative to the page. */
  constructor(root: string, send: Send = (address, request) => globalThis.fetch(address, request)) {
    this.root = root
    this.send = send
  }

  readonly subscribe = (listener: () => void): () => void => {
    this.listeners.add(listener)
    return () => void this.listeners.delete(listener)
  }

  /** Returns whether a token is needed. */
  readonly login = (): Login => this.state

  private change(state: Partial<Login>): void {
    this.state = { ...this.state, ...state }
    for (const listener of this.listeners) listener()
  }

  /** Takes the requested token. */
  readonly enter = (token: string): void => {
    this.token = token
    this.change({ isAsked: false })
    this.asking = undefined
    this.give()
  }

  /** Asks for a token, once for all waiting requests. */
  private ask(note: string): Promise<void> {
    this.token = undefined
    this.isGood = false
    this.asking ??= new Promise((resolve) => void (this.give = resolve))
    this.change({ isAsked: true, note, isAgain: this.isLetIn })
    return this.asking
  }

  private fetch(method: string, path: string, { body, headers = {}, signal }: Sent): Promise<Response> {
    return this.send(this.root + path, {
      method,
      signal: signal ?? null,
      cache: "no-store",
      redirect: "error",
      headers: {
        ...headers,
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(this.token === undefined ? {} : { authorization: `Bearer ${this.token}` })
      },
      body: body === undefined ? null : JSON.stringify(body)
    })
  }

  /** Tells whether the server rejects the token altogether. A single request may be refused despite a valid token. */
  private async isOver(): Promise<boolean> {
    const { status } = await this.fetch("GET", "agents", {})
    return status === 401 || status === 403
  }

  /** Sends a request, and repeats the request with a token if the server asks for a token. */
  private async request(method: string, path: string, sent: Sent = {}): Promise<Response> {
    while (true) {
      const used = this.token
      const response = await this.fetch(method, path, sent).catch((error) => {
        if (sent.signal?.aborted === true) throw error
        throw new Refused(0, "unreachable", "The server cannot be reached.")
      })
      const { status } = response
      const isRefused = status === 401 || status === 403
      if (isRefused && used !== this.token) continue
      if (status === 401) {
        await this.ask(this.isGood ? overNote : this.asking === undefined ? firstNote : this.state.note)
      } else if (status === 403 && used !== undefined && !this.isGood) await this.ask(wrongNote)
      else if (status === 403 && used !== undefined && await this.isOver()) {
        // Another request may have asked meanwhile.
        if (used === this.token) await this.ask(overNote)
      } else {
        if (used !== undefined && response.ok) this.isGood = this.isLetIn = true
        if (!response.ok) throw await refusalOf(response)
        return response
      }
    }
  }

  private async read<A>(path: string, signal?: AbortSignal): Promise<A> {
    return await (await this.request("GET", path, { signal })).json()
  }

  async agents(): Promise<ReadonlyArray<Agent>> {
    return (await this.read<{ readonly agents: ReadonlyArray<Agent> }>("agents")).agents
  }

  facts(agent: string): Promise<Facts> {
    return this.read(`agents/${encodeURIComponent(agent)}`)
  }

  list(agent: string, { next, query }: { readonly query: string; readonly next?: string }): Promise<ListPage> {
    return this.read(pathOf(agent) + queryOf({ query, next }))
  }

  runs(
    agent: string,
    id: string,
    { before, limit, signal }: { readonly before?: string; readonly limit?: number; readonly signal?: AbortSignal }
  ): Promise<RunsPage> {
    return this.read(pathOf(agent, id, "/runs") + queryOf({ before, limit }), signal)
  }

  /** Opens a session's events, from an offset on or from the run under way. */
  events(agent: string, id: string, after: string | undefined, signal: AbortSignal): Promise<Response> {
    const headers = after === undefined ? {} : { "last-event-id": after }
    return this.request("GET", pathOf(agent, id, "/events"), { signal, headers })
  }

  async say(agent: string, id: string, said: Submitted): Promise<void> {
    await this.request("POST", pathOf(agent, id, "/messages?wait=false"), { body: said })
  }

  /** Returns the outcome of a message. */
  fate(agent: string, id: string, message: string): Promise<Fate> {
    return this.read(pathOf(agent, id, `/messages/${encodeURIComponent(message)}`))
  }

  /** Withdraws a message not yet taken by a run, and returns its outcome. */
  async withdraw(agent: string, id: string, message: string): Promise<Fate> {
    const path = pathOf(agent, id, `/messages/${encodeURIComponent(message)}`)
    return await (await this.request("DELETE", path)).json()
  }

  async answer(agent: string, id: string, answers: ReadonlyArray<Answer>): Promise<void> {
    await this.request("POST", pathOf(agent, id, "/answers?wait=false"), { body: { answers } })
  }

  /** Stops a session's run, and returns the outcome of its calls, or `undefined` if the stream broke off. */
  async stop(agent: string, id: string): Promise<StopReport | undefined> {
    const response = await this.request("POST", pathOf(agent, id, "/stop"))
    for await (const { data, event } of frames(response)) if (event === "ended") return JSON.parse(data)
    return undefined
  }

  /** Stops one call of a session's run, by its path. The run continues. */
  async stopCall(agent: string, id: string, path: string): Promise<void> {
    await this.request("POST", pathOf(agent, id, `/calls/${encodeURIComponent(path)}/stop`))
  }

  /** Retries a failed run. */
  async retry(agent: string, id: string): Promise<void> {
    await this.request("POST", pathOf(agent, id, "/resume?wait=false"))
  }

  async remove(agent: string, id: string): Promise<void> {
    await this.request("DELETE", pathOf(agent, id))
  }

  async label(agent: string, id: string, label: { readonly title?: string; readonly pinned?: boolean }): Promise<void> {
    await this.request("PATCH", pathOf(agent, id), { body: label })
  }

  /** Begins a session with another session's conversation before a message. */
  async fork(
    agent: string,
    id: string,
    fork: { readonly id: string; readonly before: string; readonly content?: Message.Content }
  ): Promise<{ readonly calls?: ReadonlyArray<{ readonly name: string }> }> {
    return await (await this.request("POST", pathOf(agent, id, "/fork"), { body: fork })).json()
  }

  async forget(agent: string, id: string, tool: string): Promise<void> {
    await this.request("DELETE", pathOf(agent, id, `/allowed/${encodeURIComponent(tool)}`))
  }
}
