/**
 * Owners of sessions under siege: while sessions go on, one process at a time is asked to leave, killed, frozen, or told another
 * time, at a random moment, and another one is started in its place. Every charge has to happen once.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Random from "effect/Random"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import { Message, Session } from "heddle"
import * as fs from "node:fs"
import { createServer } from "node:net"
import * as path from "node:path"
import type { Ledger } from "./bank.ts"
import * as Processes from "./processes.ts"
import type { Order } from "./program.ts"
import * as Work from "./work.ts"

/**
 * What is done to a process. `interrupt` interrupts what runs under its claims, `close` closes the scopes of its claims and
 * nothing else, and `clock` sets its clock by an hour or two.
 */
export const means = ["SIGTERM", "SIGKILL", "SIGSTOP", "interrupt", "close", "clock"] as const

/** One of them. */
export type Means = typeof means[number]

/** How long a siege is, and what it is of. */
export interface Options {
  readonly program: string
  readonly kind: Work.Kind
  /** The file of SQLite, or the URL of the database. */
  readonly store: string
  /** Asks for the turns of a session, of a worker or a runner. */
  readonly begin: (id: string, text: string) => Effect.Effect<unknown, unknown, Session.Store | Scope.Scope>
  readonly means: Means
  /** How often it is done. */
  readonly times: number
  /** Sessions that are under way at a time. */
  readonly width: number
  readonly bankMillis: number
  readonly termMillis: number
  /**
   * The library libfaketime, which sets the clock of a process with that of its SQLite. `clock` sets that of `Date` and of
   * Effect where it is left out.
   */
  readonly faketime?: string
  /** `true` where all processes have the clock that libfaketime sets. */
  readonly isShared?: boolean
}

/** What came of it. */
export interface Report {
  /** How often a process was asked to leave, killed, and so on. */
  readonly times: number
  readonly sessions: number
  /** Sessions that did not end, or not as they should, with what was seen. */
  readonly broken: ReadonlyArray<string>
  /** Charges that the users asked for. */
  readonly charges: number
  /** Charges that happened more than once. */
  readonly twice: ReadonlyArray<string>
  /** Those of a process that stood still within the handler, after it had begun and before its request was sent. */
  readonly frozen: number
  /** Charges that never happened, and whose effect was not reported as unknown. */
  readonly never: ReadonlyArray<string>
  /** Calls that were under way when their process was asked to leave, killed, and so on. */
  readonly underWay: number
  /** Calls that were reported as unknown. */
  readonly unknown: number
  /** Those of them whose end their process knew, and had the time to record. */
  readonly knew: ReadonlyArray<string>
  /** Milliseconds until another process went on with a session in which nothing was under way. */
  readonly takeovers: ReadonlyArray<number>
  /** Milliseconds until a process that was asked to leave had ended. */
  readonly leaves: ReadonlyArray<number>
}

/** What was done to which process. */
interface Deed {
  readonly pid: number
  readonly at: number
  /** Until when it stood still. */
  readonly until: number
}

/** A session with what its user asks for. */
interface Asked {
  readonly id: string
  readonly turns: ReadonlyArray<ReadonlyArray<Work.Call>>
}

const freePort: Effect.Effect<number> = Effect.callback((resume) => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const address = server.address()
    server.close(() => resume(Effect.succeed(typeof address === "object" && address !== null ? address.port : 0)))
  })
})

const charging = ["charge", "charge", "transfer", "wire"] as const

/** Draws the turns of a session. Every charge has a value of its own. */
const draw = (index: number): Effect.Effect<Asked> =>
  Effect.gen(function*() {
    const turns: Array<ReadonlyArray<Work.Call>> = []
    let value = index * 100
    for (let turn = yield* Random.nextIntBetween(1, 3); turn > 0; turn--) {
      const calls: Array<Work.Call> = []
      for (let call = yield* Random.nextIntBetween(1, 3); call > 0; call--) {
        calls.push([charging[yield* Random.nextIntBetween(0, charging.length - 1)]!, ++value])
      }
      if (yield* Random.nextBoolean) calls.push(["balance", yield* Random.nextIntBetween(0, 500)])
      turns.push(calls)
    }
    return { id: `s${index}`, turns }
  })

const often = Schedule.spaced("50 millis")

/** A bound for what has to happen, which a busy machine does not reach. */
const bound = "5 minutes"

/** The text of a file that sets the clock of a process. */
const hoursAhead = (hours: number): string => `${hours < 0 ? "" : "+"}${hours}h`

/** Lays siege. */
export const siege = (options: Options): Effect.Effect<Report, unknown, Session.Store | Scope.Scope> =>
  Effect.gen(function*() {
    const { bankMillis, begin, kind, means, program, store, termMillis, width } = options
    const folder = yield* Processes.folder
    const log = path.join(folder, "log.jsonl")
    fs.writeFileSync(log, "")
    const bank = yield* Processes.bank(bankMillis)
    /** The files that set the clocks of processes. */
    const times = new Map<Processes.Owner, string>()
    let started = 0
    const start = Effect.gen(function*() {
      const port = kind === "runner" ? { port: yield* freePort } : {}
      const place = { kind, store, bank: bank.address, log, term: termMillis, think: 600, ...port }
      const file = path.join(folder, options.isShared === true ? "time" : `time-${++started}`)
      fs.writeFileSync(file, hoursAhead(0))
      const environment = options.faketime === undefined ? {} : {
        LD_PRELOAD: options.faketime,
        FAKETIME_TIMESTAMP_FILE: file,
        FAKETIME_NO_CACHE: "1",
        FAKETIME_DONT_FAKE_MONOTONIC: "1"
      }
      const owner = yield* Processes.start(program, place, environment)
      times.set(owner, file)
      return owner
    })
    const count = kind === "runner" ? 3 : 2
    let owners = yield* Effect.all(Array.from({ length: count }, () => start), { concurrency: count })
    if (kind === "runner") {
      yield* Effect.sync(() => owners.map(({ shards }) => shards())).pipe(Effect.repeat({
        schedule: often,
        until: (shards) => !shards.includes(0) && shards.reduce((sum, count) => sum + count) === 300
      }))
    }
    const orders: Array<Asked> = []
    const deeds: Array<Deed> = []
    const leaves: Array<number> = []
    const given = new Map(owners.map((owner) => [owner, new Set<Asked>()]))
    /** Hours that the clocks of processes are ahead. */
    const ahead = new Map<Processes.Owner | undefined, number>()
    let isOver = false

    const text = ({ id, turns }: Asked) => Work.message(id, turns)
    /** Gives all open sessions to the programs that claim them. */
    const giveAll = Effect.suspend(() =>
      Effect.forEach(owners, (owner) => {
        const known = given.get(owner) ?? new Set()
        given.set(owner, known)
        return Effect.forEach(orders.filter((order) => !known.has(order)), (order) => {
          known.add(order)
          return owner.order({ _tag: "Drive", id: order.id, text: text(order) })
        })
      })
    )
    const ended = ({ id }: Asked) =>
      Session.load(id).pipe(
        Effect.map((kept) => kept !== undefined && kept.session.status === "completed" && kept.submitted === undefined),
        Effect.orElseSucceed(() => false),
        Effect.repeat({ schedule: Schedule.spaced("300 millis"), until: (isEnded) => isEnded })
      )
    const session = Effect.gen(function*() {
      const next = yield* draw(orders.length + 1)
      orders.push(next)
      if (kind === "claims") yield* giveAll
      else yield* begin(next.id, text(next))
      yield* ended(next)
    })
    const feeding = yield* Effect.suspend(() => isOver ? Effect.void : session).pipe(
      Effect.repeat({ until: () => isOver }),
      (feeder) => Effect.all(Array.from({ length: width }, () => feeder), { concurrency: "unbounded", discard: true }),
      Effect.forkChild
    )

    const replaced = (victim: Processes.Owner) =>
      Effect.gen(function*() {
        owners = [...owners.filter((owner) => owner !== victim), yield* start]
        if (kind === "claims") yield* giveAll
      })
    const done = (victim: Processes.Owner, at: number, until = at) =>
      Effect.sync(() => deeds.push({ pid: victim.pid, at, until }))

    const doIt = (victim: Processes.Owner) =>
      Effect.gen(function*() {
        const at = Work.now()
        switch (means) {
          case "SIGTERM":
            victim.signal("SIGTERM")
            yield* done(victim, at)
            // Another process is started while this one leaves, as a deployment does.
            yield* replaced(victim)
            yield* victim.ended
            return void leaves.push(Work.now() - at)
          case "SIGKILL":
            victim.signal("SIGKILL")
            yield* done(victim, at, Infinity)
            return yield* replaced(victim)
          case "SIGSTOP": {
            // Most often between the record and the handler.
            const way = [0, 1, 1, 1, 2][yield* Random.nextIntBetween(0, 4)]!
            const before = Work.lines(log).length
            const isSo = ({ what }: Work.Line) => what === (way === 2 ? "hears" : "is frozen")
            // The process that records the start of a charge next freezes itself, and answers no order until it wakes.
            const tell = (order: Order) =>
              Effect.forkScoped(Effect.forEach(owners, (owner) => owner.order(order), { concurrency: "unbounded" }))
            if (way < 2) yield* tell({ _tag: "Freeze", at: way === 0 ? "before" : "after" })
            const first = yield* Effect.sync(() => Work.lines(log).slice(before).find(isSo)).pipe(
              Effect.repeat({ schedule: Schedule.spaced("2 millis"), until: (line) => line !== undefined })
            )
            // Or it is frozen from outside, as soon as it has heard what to charge.
            if (way === 2) owners.find(({ pid }) => pid === first?.pid)?.signal("SIGSTOP")
            else yield* tell({ _tag: "Freeze" })
            const from = Work.now()
            yield* Effect.sleep(termMillis * (1.2 + (yield* Random.next)))
            const frozen = new Set(Work.lines(log).slice(before).filter(isSo).map(({ pid }) => pid))
            for (const owner of owners) {
              if (way === 2 ? owner.pid === first?.pid : frozen.has(owner.pid)) yield* done(owner, from, Work.now())
              owner.signal("SIGCONT")
            }
            // A process that wakes may freeze itself once more before it hears the order not to.
            return yield* Effect.sync(() => owners.forEach((owner) => owner.signal("SIGCONT"))).pipe(
              Effect.repeat({ schedule: Schedule.spaced("50 millis"), times: 20 })
            )
          }
          case "interrupt":
          case "close":
            yield* done(victim, at)
            return yield* victim.order({ _tag: "Close", by: means === "close" ? "scope" : "interruption" })
          case "clock": {
            const key = options.isShared === true ? undefined : victim
            const others = [-1, 0, 1].filter((hours) => hours !== (ahead.get(key) ?? 0))
            const hours = others[yield* Random.nextIntBetween(0, 1)]!
            ahead.set(key, hours)
            yield* done(victim, at)
            if (options.faketime !== undefined) return fs.writeFileSync(times.get(victim)!, hoursAhead(hours))
            return yield* victim.order({ _tag: "Set", aheadMillis: hours * 3_600_000 })
          }
        }
      })

    for (let time = 0; time < options.times; time++) {
      yield* Effect.sleep(500 + 2500 * (yield* Random.next))
      // A process that does something: each session has one owner, and few owners may have all sessions.
      const active = new Set(Work.lines(log).slice(-8).map(({ pid }) => pid))
      const busy = owners.filter(({ pid }) => active.has(pid))
      const candidates = busy.length > 0 ? busy : owners
      yield* doIt(candidates[yield* Random.nextIntBetween(0, candidates.length - 1)]!)
    }
    isOver = true
    yield* Effect.timeoutOption(Fiber.await(feeding), bound)
    const ledger = yield* bank.ledger
    const kept = yield* Effect.forEach(orders, ({ id }) => Effect.map(Session.load(id), (kept) => kept?.session))
    return reported({ deeds, kept, ledger, leaves, lines: Work.lines(log), means, orders })
  })

interface Seen {
  readonly means: Means
  readonly deeds: ReadonlyArray<Deed>
  readonly orders: ReadonlyArray<Asked>
  readonly kept: ReadonlyArray<Session.Session | undefined>
  readonly ledger: Ledger
  readonly lines: ReadonlyArray<Work.Line>
  readonly leaves: ReadonlyArray<number>
}

/** The answers of the calls of a session, by their values. */
const answersOf = (session: Session.Session | undefined): ReadonlyMap<unknown, string> => {
  const messages = session?.thread.messages ?? []
  const calls = messages.flatMap(({ toolCalls = [] }) => toolCalls)
  return new Map(messages.flatMap((message) => {
    const call = calls.find(({ id }) => id === message.toolCallId)
    return call === undefined ? [] : [[call.arguments?.["value"], Message.text(message)] as const]
  }))
}

const reported = ({ deeds, kept, leaves, ledger, lines, means, orders }: Seen): Report => {
  const from = Math.min(...lines.map(({ at }) => at))
  const time = (at: number | undefined) => at === undefined ? "never" : `${((at - from) / 1000).toFixed(2)} s`
  const story = (value: number) => {
    const own = lines.filter((line) => line.value === value)
    const [first = 0, last = 0] = [own[0]?.at, own.at(-1)?.at]
    return [
      ...own.map(({ at, pid, what }) => [at, `${pid} ${what}`] as const),
      ...ledger.charges.filter(({ amount }) => amount === value).flatMap(({ begun, done, pid }) => [
        [begun, `the bank begins for ${pid}`] as const,
        ...done === undefined ? [] : [[done, `the bank ends for ${pid}`] as const]
      ]),
      ...deeds.filter(({ at, pid, until }) => own.some((line) => line.pid === pid) && until >= first && at <= last)
        .flatMap(({ at, pid, until }) => [
          [at, `${means} of ${pid}`] as const,
          ...until > at && until < Infinity ? [[until, `end of ${means} of ${pid}`] as const] : []
        ])
    ].toSorted(([a], [b]) => a - b).map(([at, what]) => `${time(at)} ${what}`).join("; ")
  }

  const broken: Array<string> = []
  const twice: Array<string> = []
  const never: Array<string> = []
  const knew: Array<string> = []
  let [charges, unknown, frozen] = [0, 0, 0]
  // A process that stood still within a handler sends what it had begun when it wakes, and the bank has only the key.
  const isFrozenWithin = (value: number): boolean =>
    means === "SIGSTOP" &&
    ledger.charges.some((charge) =>
      charge.amount === value && deeds.some(({ at, pid, until }) =>
        pid === charge.pid && charge.begun >= until
        && lines.some((line) => line.pid === pid && line.value === value && line.what === "begins" && line.at <= at)
      )
    )
  orders.forEach(({ id, turns }, index) => {
    const session = kept[index]
    const messages = session?.thread.messages ?? []
    const expected = 2 + turns.reduce((sum, calls) => sum + 1 + calls.length, 0)
    if (session?.status !== "completed" || messages.length !== expected) {
      broken.push(`${id} is ${session?.status} with ${messages.length} messages, not ${expected}`)
    }
    const answers = answersOf(session)
    for (const [tool, value] of turns.flat()) {
      if (tool === "balance") continue
      charges++
      const count = ledger.charges.filter(({ amount }) => amount === value).length
      const answer = answers.get(value) ?? ""
      const isUnknown = answer.includes("unknown_effect")
      if (count > 1 && isFrozenWithin(value)) frozen++
      else if (count > 1) twice.push(`${tool} ${value}: ${story(value)}`)
      if (count === 0 && !isUnknown) never.push(`${tool} ${value}, answered ${answer}: ${story(value)}`)
      if (!isUnknown && !answer.includes(`charged ${value}`)) {
        broken.push(`${tool} ${value} is answered ${JSON.stringify(answer)}: ${story(value)}`)
      }
      if (!isUnknown) continue
      unknown++
      const end = lines.find((line) => line.value === value && line.what === "ends")
      // A process that was killed or stood still soon after could not record it.
      const isLost = deeds.some(({ at, pid, until }) => pid === end?.pid && until > at && at - end.at < 500)
      if (end !== undefined && !isLost) knew.push(`${tool} ${value}: ${story(value)}`)
    }
  })

  const underWay = (pid: number, at: number) => {
    const begun = lines.filter((line) => line.pid === pid && line.what === "begins" && line.at < at)
    return begun.filter(({ value }) =>
      !lines.some((line) => line.value === value && line.what === "ends" && line.at < at)
    )
  }
  const takeovers = deeds.flatMap(({ at, pid }) =>
    orders.flatMap(({ id }) => {
      const own = lines.filter(({ session }) => session === id)
      const last = own.findLast((line) => line.at < at)
      if (last?.pid !== pid || last.what !== "asks" || underWay(pid, at).some(({ session }) => session === id)) {
        return []
      }
      const next = own.find((line) => line.at > at && line.pid !== pid)
      const isLeft = !own.some((line) => line.at > at && line.pid === pid)
      return next === undefined || !isLeft ? [] : [next.at - at]
    })
  )
  return {
    times: deeds.length,
    sessions: orders.length,
    broken,
    charges,
    twice,
    frozen,
    never,
    underWay: deeds.reduce((sum, { at, pid }) => sum + underWay(pid, at).length, 0),
    unknown,
    knew,
    takeovers,
    leaves
  }
}
