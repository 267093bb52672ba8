/**
 * A recorded session replayed as what it was: a tool loop. Heddle runs it, with tools that answer what was answered
 * then, and every request it sends is compared with the recorded one.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type Adapter, Chat, Encoder, type Event, type Message, Tool } from "heddle"
import * as Compare from "./compare.ts"
import * as Conversation from "./conversation.ts"
import * as Cuts from "./cuts.ts"
import type * as Fixtures from "./fixtures.ts"
import type * as Protocols from "./protocols.ts"
import * as Server from "./server.ts"
import * as Session from "./session.ts"

const isName = (name: string): boolean => /^[A-Za-z0-9_-]{1,64}$/.test(name)

/** The tools of a session. Each answers as it did then, by its turn and its place in it. */
const toolsOf = (turns: ReadonlyArray<Session.Turn>, first: number): ReadonlyArray<Tool.Any> => {
  const offered = turns.flatMap(({ recorded }) => recorded.tools)
  const called = turns.flatMap(({ expected }) => expected.toolCalls ?? [])
    .map(({ name }) => ({ name, description: "", parameters: { type: "object" } as Conversation.Json }))
  const known = [...offered, ...called]
  const own = known.filter(({ name }, index) =>
    isName(name) && known.findIndex((other) => other.name === name) === index
  )
  return own.map(({ description, name, parameters }) =>
    Tool.make(name, {
      description,
      parameters,
      handler: (_args, call): Effect.Effect<string, string> => {
        const answer = turns[first + call.stepIndex]?.next?.answers[call.index]
        if (answer === undefined) return Effect.succeed("the recording does not say")
        return answer.isError === true ? Effect.fail(answer.text) : Effect.succeed(answer.text)
      }
    })
  )
}

/** Answers as they were recorded, failures too. */
const encoder = Encoder.layer({
  encode: (value) => {
    const said = Conversation.object(value)
    const text = said["_tag"] === "Error" ? said["error"] : value
    return typeof text === "string" ? Effect.succeed(text) : Encoder.json.encode(value)
  }
})

/** How far a loop goes that starts at a turn: to the first that ends the conversation, or where the user speaks again. */
const lastOf = (turns: ReadonlyArray<Session.Turn>, first: number): number => {
  let last = first
  while ((turns[last]?.next?.answers.length ?? 0) > 0 && turns[last]?.next?.extra.length === 0) last++
  return last
}

const readingOf = (step: Event.StepResult | undefined, error: unknown): Compare.Reading => {
  const failure = (error ?? step?.response.error) as Adapter.AdapterError | undefined
  return step === undefined
    ? Compare.failed([], failure)
    : { events: [], response: step.response, error: failure }
}

/** What the recording answered to a call without arguments is not what Heddle answers to one whose arguments were lost. */
const withoutLost = (items: ReadonlyArray<Conversation.Item>, lost: ReadonlySet<string | null>) =>
  items.map((item) => item.kind === "result" && lost.has(item.id) ? { ...item, text: "", isError: null } : item)

const requestProblems = (turn: Session.Turn, sent: string | undefined, protocol: Protocols.Protocol) => {
  const found = Session.read(protocol, sent)
  if (found === undefined) return ["request: none was sent"]
  const calls = turn.recorded.items.flatMap((item) => item.kind === "assistant" ? item.calls : [])
  const lost = new Set(calls.filter((call) => !Conversation.isObject(call.arguments)).map((call) => call.id))
  return Conversation.differences(withoutLost(turn.recorded.items, lost), withoutLost(found.items, lost))
}

interface Run {
  readonly fixture: Fixtures.Fixture
  readonly protocol: Protocols.Protocol
  readonly turns: ReadonlyArray<Session.Turn>
  readonly session: Server.Session
  readonly adapter: Layer.Layer<Adapter.Adapter>
}

/** One loop, from a turn to the last one of it: what was wrong, and the thread it ended with. */
const runLoop = ({ adapter, protocol, session, turns }: Run, thread: ReadonlyArray<Message.Message>, first: number) =>
  Effect.gen(function*() {
    const last = lastOf(turns, first)
    const outcome = yield* Chat.run(thread, { tools: toolsOf(turns, first), maxTurns: last - first + 1 }).pipe(
      Effect.match({ onFailure: (error) => ({ error }), onSuccess: (result) => ({ result }) }),
      Effect.provide([adapter, encoder])
    )
    const result = "result" in outcome ? outcome.result : undefined
    const failure = "error" in outcome ? outcome.error : undefined
    const problems = turns.slice(first, last + 1).flatMap((turn, position) => {
      const index = first + position
      const step = result?.steps[position]
      const isLast = index === last
      const error = step === undefined ? failure ?? (result?.outcome as { readonly error?: unknown })?.error : undefined
      const found = [
        ...requestProblems(turn, session.requests[index], protocol),
        ...Compare.differences(turn.expected, turn.answer.status, readingOf(step, error)),
        ...(isLast && session.requests.length > last + 1 ? ["a request too many was sent"] : [])
      ]
      return found.map((problem) => `[turn ${index}, as a loop] ${problem}`)
    })
    return { last, problems, thread: result?.thread.messages ?? [] }
  })

const runAll = (run: Run) =>
  Effect.gen(function*() {
    const problems: Array<string> = []
    let thread: ReadonlyArray<Message.Message> = []
    let isNew = true
    for (let index = 0; index < run.turns.length;) {
      if (isNew) thread = Conversation.toMessages(run.turns[index]!.recorded.items)
      const loop = yield* runLoop(run, thread, index)
      problems.push(...loop.problems)
      // After a request that was not sent, the server's answers belong to other turns.
      if (problems.length > 0) return problems
      const next = run.turns[loop.last]?.next
      isNew = next === undefined
      thread = [...loop.thread, ...Conversation.toMessages(next?.extra ?? [])]
      index = loop.last + 1
    }
    return problems
  })

/** What is wrong with a session when it is replayed as tool loops, its answers cut in one way. */
export const replay = (
  fixture: Fixtures.Fixture,
  protocol: Protocols.Protocol,
  chooseCut: (cuts: ReadonlyArray<Cuts.Cut>) => Cuts.Cut | undefined
) =>
  Effect.gen(function*() {
    const turns = Session.turns(fixture, protocol)
    if (turns === undefined) return []
    const replies = turns.map(({ answer }) => ({
      answer,
      sizes: chooseCut(Cuts.all(answer.body, answer.chunkSizes))?.sizes ?? []
    }))
    const session = (yield* Server.Server).open(replies)
    const target = { baseUrl: session.url, model: fixture.model, vendor: fixture.vendor }
    const adapter = Layer.provide(protocol.adapter(target), Server.client(replies))
    return yield* runAll({ fixture, protocol, turns, session, adapter })
  })
