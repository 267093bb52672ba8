/**
 * The law of ids: over runs of one thread, through sub-agents, retries, approvals, reloads and kills, a call has one id,
 * and each view of it (plain events, journals, the thread, AG-UI, `useChat` of three majors) shows each call once, with
 * its own arguments and its own answer. Models repeat ids, leave them out, and choose hostile ones.
 */
import { HttpAgent, type Message as AgMessage } from "@ag-ui/client"
import { describe } from "@effect/vitest"
import type { UIMessage } from "ai"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { Adapter, Chat, type Event, Message, Session, type Thread, Tool } from "heddle"
import { AgUi, UiStream } from "heddle/ui"
import { oneOf } from "../support/dimensions/dimension.ts"
import { holding, listing, type Written } from "../support/nests.ts"
import { published } from "../support/pages.ts"
import { property } from "../support/property.ts"
import { chunksOf, protocols, readMessage, toolParts, withoutDiscarded } from "../ui/support/page.ts"

// What is generated.

const long = "x".repeat(60)

const wireIds = [
  "c",
  "c",
  "c",
  "c_2",
  "c_3",
  "",
  "call_1_1",
  "call_3_1",
  long,
  `${long}y`,
  `${"x".repeat(37)}😀😀`,
  "__proto__",
  "constructor",
  "a/b",
  "a~2",
  "run~c",
  "%2F",
  "answer:run~c",
  " ",
  "\n",
  "\ud800"
]

const kinds = ["answers", "answers", "fails", "approves", "inside", "provider's"] as const

/** The place of an id in the program's few ids, so that most come again. */
const place = oneOf(0, 0, 1, 2, 3)

const call = Arbitrary.all({ kind: oneOf(...kinds), id: place })

const turn = Arbitrary.all({
  calls: Arbitrary.array(call, { minLength: 1, maxLength: 3 }),
  /** Tells whether the reply breaks first, and is asked for again. */
  breaks: oneOf(false, false, true)
})

/** The turns of a run inside a call: one that may go deeper, and one that answers. */
const inside = Arbitrary.all({ kind: oneOf("answers", "approves", "deeper"), id: place })

const programs = Arbitrary.all({
  ids: Arbitrary.array(oneOf(...wireIds), { minLength: 1, maxLength: 4 }),
  runs: Arbitrary.array(Arbitrary.array(turn, { minLength: 1, maxLength: 2 }), { minLength: 2, maxLength: 3 }),
  insides: Arbitrary.array(inside, { minLength: 1, maxLength: 4 }),
  hidesDeltas: oneOf(false, false, true),
  hasMessages: oneOf(true, true, false),
  cut: oneOf(...Array.from({ length: 60 }, (_, at) => at))
})

type Program = typeof programs extends Arbitrary.Arbitrary<infer A> ? A : never

// The model and its tools. A number tells calls apart where ids do not, and stands in their answers as `#n#`.

interface Said {
  readonly id: string
  readonly name: string
  readonly n: number
  readonly isProviders?: boolean
}

const eventsOf = ({ id, isProviders = false, n, name }: Said): ReadonlyArray<Event.AdapterEvent> => [
  { _tag: "ToolCallStarted", id, name },
  { _tag: "ToolCallDelta", id, argumentsDelta: `{"n":` },
  { _tag: "ToolCallDelta", id, argumentsDelta: `${n}}` },
  {
    _tag: "ToolCallCompleted",
    id,
    name,
    arguments: { n },
    rawArguments: `{"n":${n}}`,
    ...(isProviders ? { providerExecuted: true } : {})
  }
]

const reply = (calls: ReadonlyArray<Said>, said: string): ReadonlyArray<Event.AdapterEvent> => [
  { _tag: "MessageStarted", message: Message.assistant("") },
  { _tag: "TextDelta", id: null, delta: said },
  ...calls.flatMap(eventsOf),
  {
    _tag: "MessageCompleted",
    message: Message.assistant(
      said,
      calls.map(({ id, isProviders, n, name }) => ({
        ...Message.toolCall(id, name, { n }),
        ...(isProviders === true ? { providerExecuted: true } : {})
      }))
    ),
    finishReason: calls.every(({ isProviders }) => isProviders === true) ? "stop" : "tool_calls"
  }
]

/** The place of a request: the last message of the user, and the replies behind it. */
const placeOf = ({ messages }: Adapter.Request) => {
  const last = messages.findLastIndex(({ role }) => role === "user")
  const replies = messages.slice(last + 1).filter(({ role }) => role === "assistant").length
  return { who: Message.text(messages[last]!), replies }
}

const numberIn = (text: string): number => Number(/#(\d+)#/.exec(text)?.[1] ?? Number.NaN)

/** The id of a call on the wire. That of a call that the provider ran is taken in its run only: no thread has it. */
const wireIdOf = ({ ids }: Program, { id, kind }: { readonly id: number; readonly kind: string }): string => {
  const own = ids[id % ids.length] ?? ""
  return kind === "provider's" ? `s${own}` : own
}

const modelOf = (program: Program) => {
  const { insides, runs } = program
  const broken = new Set<string>()
  return Adapter.layer({
    stream: (request) =>
      Stream.suspend((): Stream.Stream<Event.AdapterEvent, Adapter.AdapterError> => {
        const { replies, who } = placeOf(request)
        const [kind = "", text = ""] = who.split(" ")
        const number = Number(text)
        if (kind === "inside") {
          const inner = insides[number % insides.length]!
          const { kind } = inner
          const id = wireIdOf(program, inner)
          const isDeep = kind === "deeper" && number < 10_000
          const name = isDeep ? "inside" : kind === "deeper" ? "answers" : kind
          return Stream.fromIterable(
            replies === 0 ? reply([{ id, name, n: number * 10 }], "in") : reply([], `#${number}#`)
          )
        }
        const said = runs[number]?.[replies]
        if (said === undefined) return Stream.fromIterable(reply([], `done ${number}`))
        const calls = said.calls.map(({ id, kind }, index): Said => ({
          id: wireIdOf(program, { id, kind }),
          name: kind,
          n: (number * 2 + replies) * 3 + index + 1,
          isProviders: kind === "provider's"
        }))
        const events = reply(calls, `turn ${number}.${replies}`)
        if (!said.breaks || broken.has(`${number} ${replies}`)) return Stream.fromIterable(events)
        broken.add(`${number} ${replies}`)
        return Stream.concat(
          Stream.fromIterable(events.slice(0, -2)),
          Stream.fail(new Adapter.AdapterError({ reason: "network_error" }))
        )
      })
  })
}

const common = { parameters: { n: Schema.Finite }, idempotent: true, afterCrash: "retry" } as const
const answers = Tool.make("answers", { ...common, handler: ({ n }) => Effect.succeed(`#${n}#`) })
const fails = Tool.make("fails", { ...common, handler: ({ n }) => Effect.fail(`#${n}#`) })
const approves = Tool.make("approves", { ...common, approval: true, handler: ({ n }) => Effect.succeed(`#${n}#`) })
const insideOf = (tools: ReadonlyArray<Tool.Any>) =>
  Tool.fromChat("inside", {
    parameters: { n: Schema.Finite },
    chat: ({ n }) => Chat.stream(`inside ${n}`, { tools: tools as [typeof answers] })
  })
const deep = insideOf([answers, approves])
const tools = [answers, fails, approves, insideOf([answers, approves, deep])] as ReadonlyArray<typeof answers>

// A program: its session is run to the end, from wherever it is.

/** The events of an operation, and the session behind it. */
interface Operation {
  readonly events: ReadonlyArray<Event.Event>
  readonly isContinued: boolean
}

const runToEnd = (program: Program) =>
  Effect.gen(function*() {
    const operations: Array<Operation> = []
    const options = { tools, emitToolDeltas: !program.hidesDeltas, retryReply: Schedule.recurs(4) }
    const played = (
      isContinued: boolean,
      events: Stream.Stream<Event.Event, unknown, Adapter.Adapter | Session.Store>
    ) => Effect.map(Stream.runCollect(events), (events) => void operations.push({ events, isContinued }))
    for (let guard = 0; guard < 40; guard++) {
      const kept = (yield* Session.load("s")) ?? (yield* Session.open("s"))
      const { session } = kept
      if (kept.interrupted !== undefined) {
        yield* played(true, Session.streamResume(kept, { ...options, takeOver: true }))
      } else if (session.suspensions.length > 0) {
        yield* Session.keep(kept, (session) => Session.approve(session, session.suspensions[0]!.id))
      } else if (session.approved.length > 0 || session.answered.length > 0) {
        yield* played(true, Session.keepStream(kept, (session) => Session.streamContinue(session, null, options)))
      } else {
        const number = session.thread.messages.filter(({ role }) => role === "user").length
        if (number >= program.runs.length) return { operations, session }
        yield* played(
          false,
          Session.keepStream(kept, (session) => Session.streamReply(session, `run ${number}`, options))
        )
      }
    }
    return yield* Effect.die("the program has no end")
  })

// Views. Each lists its calls as `id n answer`, in any order.

const row = (id: string, n: unknown, answer: unknown): string => JSON.stringify([id, n, answer])

/** What is wrong with a view, beside that of the thread. */
const compared = (view: string, rows: ReadonlyArray<string>, right: ReadonlyArray<string>): ReadonlyArray<string> => {
  const [one, other] = [rows.toSorted().join(), right.toSorted().join()]
  return one === other ? [] : [`${view}: ${one} in place of ${other}`]
}

const ofThread = ({ messages }: Pick<Thread.Thread, "messages">): ReadonlyArray<string> => {
  const given = messages.filter(({ role }) => role === "tool")
  return messages.flatMap(({ toolCalls = [] }) =>
    toolCalls.map(({ arguments: { n }, id }) =>
      row(id, n, given.filter(({ toolCallId }) => toolCallId === id).map((message) => numberIn(Message.text(message))))
    )
  )
}

/** The calls of plain events, without those of discarded replies, of repeated ones, and of the provider. */
const ofEvents = (operations: ReadonlyArray<Operation>, hidesDeltas: boolean) => {
  const problems: Array<string> = []
  const calls: Array<{ readonly id: string; readonly n: unknown; readonly answers: Array<number> }> = []
  for (const { events } of operations) {
    let own: typeof calls = []
    let texts = new Map<string, string>()
    const open = new Set<string>()
    for (const event of events) {
      switch (event._tag) {
        case "ToolCallStarted":
          if (event.replayed === true) break
          if (open.has(event.id)) problems.push(`${event.id} is started again`)
          open.add(event.id)
          break
        case "ToolCallDelta":
          if (!open.has(event.id)) problems.push(`a fragment of ${event.id}, which is not open`)
          texts.set(event.id, (texts.get(event.id) ?? "") + event.argumentsDelta)
          break
        case "ToolCallCompleted":
          if (event.replayed === true || event.providerExecuted === true) break
          own.push({ id: event.id, n: event.arguments["n"], answers: [] })
          if (!hidesDeltas && texts.get(event.id) !== event.rawArguments) {
            problems.push(
              `${event.id} has the fragments ${texts.get(event.id)}, and the arguments ${event.rawArguments}`
            )
          }
          break
        case "StepReset":
          own = []
          texts = new Map()
          open.clear()
          break
        case "MessageCompleted": {
          const named = event.message.toolCalls?.filter(({ providerExecuted }) => providerExecuted !== true) ?? []
          if (event.replayed !== true) {
            problems.push(
              ...compared(
                "MessageCompleted",
                named.map(({ arguments: { n }, id }) => row(id, n, 0)),
                own.map(({ id, n }) => row(id, n, 0))
              )
            )
            calls.push(...own)
          }
          own = []
          texts = new Map()
          break
        }
        case "ToolExecutionStarted": {
          const found = calls.filter(({ id }) => id === event.id)
          if (found.length !== 1) problems.push(`${event.id} runs, and ${found.length} calls have this id`)
          if (found[0] !== undefined && found[0].n !== event.arguments["n"]) {
            problems.push(`${event.id} runs with the arguments of ${String(event.arguments["n"])}`)
          }
          break
        }
        case "ToolResultEncoded":
          for (const call of calls) {
            const answer = numberIn(String(event.content))
            if (call.id === event.id && call.answers.at(-1) !== answer) call.answers.push(answer)
          }
      }
    }
  }
  return { problems, rows: calls.map(({ answers, id, n }) => row(id, n, answers)) }
}

/** The calls of a journal, by its replies and the ends of its calls. */
const ofJournal = (written: ReadonlyArray<Written>, journal: string): ReadonlyArray<string> => {
  const replies = new Map<string, ReadonlyArray<Message.ToolCall>>()
  const ends = new Map<string, Array<number>>()
  for (const { id, record } of written) {
    if (id !== journal) continue
    if (record._tag === "ReplyReceived") {
      replies.set(`${record.requestId} ${record.stepIndex}`, record.response.toolCalls)
    }
    if (record._tag === "CallEnded") {
      const { content, toolCallId = "" } = record.message
      ends.set(toolCallId, [...ends.get(toolCallId) ?? [], numberIn(String(content))])
    }
  }
  return Array.from(replies.values()).flat().flatMap(({ arguments: { n }, id, providerExecuted }) =>
    providerExecuted === true ? [] : [row(id, n, ends.get(id) ?? [])]
  )
}

/** The ids of all calls of the replies of a journal, by run and step. */
const repliesIn = (written: ReadonlyArray<Written>, journal: string): ReadonlyArray<string> => {
  const runs: Array<string> = []
  const replies = new Map<string, string>()
  for (const { id, record } of written) {
    if (id !== journal) continue
    if (record._tag === "RunStarted" && !runs.includes(record.requestId)) runs.push(record.requestId)
    if (record._tag !== "ReplyReceived") continue
    const { requestId, response, stepIndex } = record
    replies.set(`${runs.indexOf(requestId)}.${stepIndex}`, response.toolCalls.map(({ id }) => id).join())
  }
  return Array.from(replies, ([place, ids]) => `${place} ${ids}`)
}

const ofAgUi = (messages: ReadonlyArray<AgMessage | AgUi.AgMessage>): ReadonlyArray<string> => {
  const all = messages as ReadonlyArray<any>
  return all.flatMap(({ toolCalls = [] }) =>
    toolCalls.flatMap(({ function: { arguments: text, name }, id }: any) => {
      const given = all.flatMap(({ content, role, toolCallId }) =>
        role === "tool" && toolCallId === id ? [numberIn(content)] : []
      )
      return name === "provider's" ? [] : [row(id, JSON.parse(text).n, given)]
    })
  )
}

const ofPage = (messages: ReadonlyArray<UIMessage>): ReadonlyArray<string> =>
  messages.flatMap((message) =>
    (toolParts(withoutDiscarded(message)) as ReadonlyArray<any>).flatMap((
      { errorText, input, output, toolCallId, toolName }
    ) =>
      toolName === "provider's" ? [] : [row(toolCallId, input.n, [numberIn(JSON.stringify(output ?? errorText ?? ""))])]
    )
  )

/** The client of AG-UI over all operations. */
const agUiOver = async (operations: ReadonlyArray<Operation>, hasMessages: boolean) => {
  let body = ""
  const agent = new HttpAgent({
    url: "http://localhost/agui",
    threadId: "s",
    fetch: () => Promise.resolve(new Response(body, { headers: AgUi.headers }))
  })
  for (const [index, { events, isContinued }] of operations.entries()) {
    if (!isContinued) agent.addMessage({ id: `u${index}`, role: "user", content: "go" })
    const messages = agent.messages.filter(({ role }) => role !== "activity") as unknown as ReadonlyArray<
      AgUi.AgMessage
    >
    const encoder = AgUi.make({ threadId: "s", runId: `r${index}`, ...(hasMessages ? { messages } : {}) })
    const shown = published(events, { runId: `r${index}` })
    const sent = [...shown.flatMap(encoder.push), ...encoder.end()]
    body = await Effect.runPromise(Stream.mkString(AgUi.toSse(Stream.fromIterable(sent))))
    const resume = agent.pendingInterrupts.map(({ id: interruptId }) => ({
      interruptId,
      status: "resolved" as const,
      payload: { approved: true }
    }))
    await agent.runAgent({ runId: `r${index}`, ...(resume.length > 0 ? { resume } : {}) })
  }
  return agent.messages
}

/** The messages of `useChat` over all operations: a run that is continued continues its message. */
const chatOver = async (operations: ReadonlyArray<Operation>, protocol: UiStream.Protocol) => {
  const messages: Array<UIMessage> = []
  for (const [index, { events, isContinued }] of operations.entries()) {
    const last = isContinued ? messages.pop() : undefined
    const chunks = chunksOf(published(events, { runId: `r${index}` }), { protocol, messageId: last?.id ?? `m${index}` })
    const { message } = await readMessage(chunks, last, protocol)
    if (message !== undefined) messages.push(message)
  }
  return messages
}

// The rule, in its own words.

const cut = (text: string, length: number): string => {
  const characters = text.slice(0, length)
  return text.length > length && /[\ud800-\udbff]$/.test(characters) ? characters.slice(0, -1) : characters
}

const named = (wire: string, used: ReadonlySet<string>, messages: number): string => {
  if (wire !== "" && !used.has(wire)) return wire
  for (let number = wire === "" ? 1 : 2;; number++) {
    const stem = wire === "" ? `call_${messages}` : wire
    const id = `${cut(stem, 39 - String(number).length)}_${number}`
    if (!used.has(id)) return id
  }
}

/** The ids that the thread of a program has by the rule. */
const ruled = (program: Program, { messages }: Thread.Thread): ReadonlyArray<string> => {
  const { runs } = program
  const used = new Set<string>()
  let number = -1
  let replies = 0
  let own = new Set<string>()
  return messages.flatMap((message, index) => {
    if (message.role === "user") {
      number++
      replies = 0
      // The thread has no calls of the provider, whose ids are taken in their run only.
      own = new Set(used)
    }
    if (message.role !== "assistant") return []
    return (runs[number]?.[replies++]?.calls ?? []).flatMap((call) => {
      const id = named(wireIdOf(program, call), own, index)
      own.add(id)
      if (call.kind === "provider's") return []
      used.add(id)
      return [id]
    })
  })
}

const idsIn = ({ messages }: Thread.Thread): ReadonlyArray<string> =>
  messages.flatMap(({ toolCalls = [] }) => toolCalls.map(({ id }) => id))

describe("call ids in all views of a run", () => {
  property(
    "O-03, O-05, O-75: each view shows each call once, with its own arguments and its own answer, also after a kill",
    programs,
    (program) =>
      Effect.gen(function*() {
        const written: Array<Written> = []
        const { operations, session: { thread } } = yield* Effect.provide(
          runToEnd(program),
          [modelOf(program), listing(written)]
        )
        const right = ofThread(thread)
        const ids = idsIn(thread)
        const events = ofEvents(operations, program.hidesDeltas)
        const problems = [
          ...(new Set(ids).size === ids.length ? [] : [`an id comes twice: ${ids.join()}`]),
          ...(JSON.stringify(ids) === JSON.stringify(ruled(program, thread))
            ? []
            : [`ids: ${JSON.stringify(ids)} in place of ${JSON.stringify(ruled(program, thread))}`]),
          ...right.filter((text) => {
            const [, n, answers] = JSON.parse(text)
            return JSON.stringify(answers) !== JSON.stringify([n])
          }).map((text) => `thread: ${text}`),
          ...events.problems,
          ...compared("events", events.rows, right)
        ]
        for (const journal of new Set(written.map(({ id }) => id))) {
          const rows = ofJournal(written, journal)
          const kept = yield* Effect.provide(Session.load(journal), holding(written))
          problems.push(...compared(`journal ${journal}`, rows, ofThread(kept!.session.thread)))
        }

        const before = written.slice(0, 1 + program.cut % written.length)
        const after: Array<Written> = []
        const again = yield* Effect.provide(runToEnd(program), [modelOf(program), holding(before, after)])
        const where = `killed behind record ${before.length}`
        const both = [...before, ...after]
        problems.push(
          ...compared(where, ofThread(again.session.thread), right),
          ...compared(`${where}, replies`, repliesIn(both, "s"), repliesIn(written, "s"))
        )

        yield* Effect.promise(async () => {
          // A client without messages of its own keeps the calls of discarded replies.
          const isDiscarding = program.runs.flat().some(({ breaks }) => breaks)
          const client = await agUiOver(operations, program.hasMessages || isDiscarding)
          problems.push(...compared("AG-UI", ofAgUi(client), right))
          problems.push(...compared("AG-UI, loaded", ofAgUi(AgUi.messages(thread)), right))
          for (const protocol of protocols) {
            problems.push(...compared(`ai ${protocol}`, ofPage(await chatOver(operations, protocol)), right))
            const loaded = UiStream.messages(thread, { protocol }) as unknown as ReadonlyArray<UIMessage>
            problems.push(...compared(`ai ${protocol}, loaded`, ofPage(loaded), right))
          }
        })
        return problems
      }),
    200
  )
})
