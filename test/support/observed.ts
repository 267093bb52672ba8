/**
 * Q-01, live is loaded: compares the state of every writer with the fold of what its store has, at every version, and with
 * the session that the state gives, taken through JSON. Every test file is observed; a difference fails the test.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { type Event, type Journal, Session } from "heddle"
import { afterEach, beforeEach } from "vitest"
import * as SharedMessages from "../../src/internal/fold/sharedMessages.ts"
import * as Json from "../../src/internal/json.ts"
import * as States from "../../src/internal/session/state.ts"
import * as Writers from "../../src/internal/session/writer.ts"
import { share } from "./property.ts"
import * as StateData from "./states.ts"

/** A journal that has more records is compared where the run ends or a call waits, and at each of this many versions. */
const closely = 200
const seldom = 50

/** This many writes of a test are compared, and of those after them the share that laws are held to. */
const first = share < 1 ? 20 : 200
const stride = Math.max(1, Math.round(1 / share))

// Values as JSON.

const texts = new WeakMap<object, string>()

/** Plain data, whatever shares it. */
const plain = (value: unknown): unknown => {
  if (typeof value !== "object" || value === null || !SharedMessages.hasMessages(value)) return value
  return SharedMessages.plain(value as SharedMessages.Thread)
}

/** The JSON of a value, with the members of each object in order. Data that is shared by many states is written once. */
const textOf = (value: unknown): string => {
  if (typeof value !== "object" || value === null) return JSON.stringify(Json.toJson(value)) ?? "null"
  const known = texts.get(value)
  if (known !== undefined) return known
  const text = written(value)
  if (Object.isFrozen(value) || !Array.isArray(value)) texts.set(value, text)
  return text
}

const written = (value: object): string => {
  if (Array.isArray(value)) return `[${value.map(textOf).join()}]`
  const prototype: unknown = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null || "toJSON" in value) return textOf(Json.toJson(value))
  const members = Object.entries(plain(value) as object)
    .filter(([, member]) => member !== undefined)
    .sort(([left], [right]) => left < right ? -1 : 1)
  return `{${members.map(([key, member]) => `${JSON.stringify(key)}:${textOf(member)}`).join()}}`
}

/** Where two values differ first. */
const differenceOf = (path: string, live: unknown, loaded: unknown): string | undefined => {
  if (live === loaded) return undefined
  if (Json.isObject(live) && Json.isObject(loaded) || Array.isArray(live) && Array.isArray(loaded)) {
    const [left, right] = [live as Record<string, unknown>, loaded as Record<string, unknown>]
    for (const key of new Set([...Object.keys(left), ...Object.keys(right)])) {
      const difference = differenceOf(`${path}.${key}`, left[key], right[key])
      if (difference !== undefined) return difference
    }
    return undefined
  }
  return `${path} is ${JSON.stringify(live)}, and ${JSON.stringify(loaded)} in the journal`
}

// The fold of what a store has.

interface Folded {
  state: States.State
  version: number
}

const folds = new WeakMap<Journal.Service, Map<string, Folded>>()

/** The records of a journal behind a version, up to another one. `undefined` where the store cannot give them at once. */
const recordsOf = (store: Journal.Service, id: string, after: number, until: number) => {
  const reading = Stream.runCollect(Stream.takeWhile(store.read(id, after), ({ version }) => version <= until))
  const exit = Effect.runSyncExit(reading)
  return Exit.isSuccess(exit) ? exit.value : undefined
}

const foldOn = (store: Journal.Service, id: string, from: Folded, until: number): States.State | undefined => {
  const entries = recordsOf(store, id, from.version, until)
  if (entries === undefined) return undefined
  for (const { record, version } of entries) {
    States.apply(from.state, record)
    from.version = version
  }
  return from.version === until ? from.state : undefined
}

const anew = (id: string): Folded => ({ state: States.initial(id), version: 0 })

const textOfState = (state: States.State): string => textOf(StateData.dataOf(state))

/** Compares the state of a writer with the fold. A journal that was removed and begun again is folded anew. */
const withStore = ({ id, state, store, version }: Writers.Writer): string | undefined => {
  if (store === undefined) return undefined
  const known = folds.get(store) ?? new Map<string, Folded>()
  folds.set(store, known)
  const live = textOfState(state)
  let text: string | undefined
  for (const from of [known.get(id) ?? anew(id), anew(id)]) {
    const loaded = foldOn(store, id, from, version)
    if (loaded === undefined) continue
    known.set(id, from)
    text = textOfState(loaded)
    if (text === live) return undefined
  }
  return text && (differenceOf("state", JSON.parse(live), JSON.parse(text)) ?? "state: the order of calls differs")
}

// The session of a state.

const codec = Schema.toCodecJson(Session.Session)
const encode = Schema.encodeSync(codec)
const decode = Schema.decodeUnknownSync(codec)

const throughJson = (session: Session.Session): Session.Session => decode(JSON.parse(JSON.stringify(encode(session))))

/** What is left to do by the session alone: it has no messages of others, and no parent. */
const nextOf = (state: States.State) => States.next({ ...state, run: undefined, parent: undefined, inbox: [] })

const verdicts = ({ kind }: Event.Suspension): ReadonlyArray<Session.Answer> => {
  const denied = { _tag: "Denied", reason: "no" } as const
  switch (kind) {
    case "approval":
      return [{ _tag: "Approved" }, denied, { _tag: "Expired" }]
    case "unknown":
      return [{ _tag: "Value", value: "it had" }, { _tag: "Approved" }, denied]
    default:
      return [{ _tag: "Value", value: "an answer" }, { _tag: "Expired" }]
  }
}

const settled = (state: States.State, id: string, answer: Session.Answer): Session.Session => {
  const after = States.copyOf(state)
  States.apply(after, { _tag: "CallSettled", id, answer })
  return States.sessionOf(after)
}

/** State → Session → JSON → state keeps what is left to do, what waits, and the answers that are accepted. */
const withSession = (state: States.State): string | undefined => {
  const session = States.sessionOf(state)
  const rested = States.copyOf(state)
  if (rested.run !== undefined) return undefined
  const found = States.stateOf(throughJson(session))
  if (textOf(States.sessionOf(found)) !== textOf(session)) {
    return differenceOf("session", JSON.parse(textOf(session)), JSON.parse(textOf(States.sessionOf(found))))
  }
  if (nextOf(found) !== nextOf(rested)) return `next is ${nextOf(rested)}, and ${nextOf(found)} of the session`
  for (const suspension of session.suspensions) {
    for (const answer of verdicts(suspension)) {
      const [live, data] = [settled(rested, suspension.id, answer), settled(found, suspension.id, answer)]
      if (textOf(live) !== textOf(data)) {
        const difference = differenceOf("session", JSON.parse(textOf(live)), JSON.parse(textOf(data)))
        return `after ${answer._tag} to ${suspension.id}: ${difference}`
      }
    }
  }
  return undefined
}

// The hook.

const differences: Array<string> = []
let writes = 0

const isCompared = ({ state, version }: Writers.Writer): boolean => {
  if (writes++ >= first && writes % stride !== 0) return false
  return version <= closely || version % seldom === 0 || state.run === undefined
}

const observe = (writer: Writers.Writer): void => {
  if (!isCompared(writer)) return
  const difference = withStore(writer) ?? withSession(writer.state)
  if (difference !== undefined) differences.push(`${writer.id} at version ${writer.version}: ${difference}`)
}

/** Has no writer observed from here to the end of the test, as one that counts steps, bytes or reads of a store. */
export const unobserved = (): void => {
  Writers.observed.by = undefined
}

/** The differences so far, which do not fail the test then. */
export const taken = (): ReadonlyArray<string> => differences.splice(0)

beforeEach(() => {
  differences.length = 0
  writes = 0
  Writers.observed.by = observe
})

afterEach(() => {
  const found = taken()
  if (found.length > 0) throw new Error(`Q-01: live is not loaded:\n${found.slice(0, 5).join("\n")}`)
})
