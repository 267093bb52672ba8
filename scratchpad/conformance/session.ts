/**
 * What a recorded session says about its turns: which of them go on with the one before, with which answers to its tool
 * calls, and which start anew because the client had rewritten the history.
 */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Conversation from "./conversation.ts"
import type * as Fixtures from "./fixtures.ts"
import type * as Protocols from "./protocols.ts"

/** How a turn was gone on with: the answers to its calls, and what the user said after them. */
export interface Continuation {
  readonly answers: ReadonlyArray<Conversation.Result>
  readonly extra: ReadonlyArray<Conversation.Item>
}

export interface Turn {
  readonly recorded: Conversation.Conversation
  readonly expected: Fixtures.Expected
  readonly answer: Fixtures.Answer
  readonly next: Continuation | undefined
}

const Body = Schema.fromJsonString(Schema.Record(Schema.String, Schema.Unknown))

/** The conversation inside the text of a request. */
export const read = (protocol: Protocols.Protocol, body: string | undefined): Conversation.Conversation | undefined =>
  Option.getOrUndefined(Option.map(Schema.decodeUnknownOption(Body)(body), protocol.read))

const assistantOf = (expected: Fixtures.Expected): Conversation.Assistant => ({
  kind: "assistant",
  text: expected.text ?? "",
  calls: (expected.toolCalls ?? []).map(({ arguments: args, argumentsRaw, id, name }) => ({
    id: id === "" ? null : id,
    name,
    arguments: args ?? argumentsRaw
  }))
})

const isMadeBy = (expected: Fixtures.Expected, item: Conversation.Item | undefined): item is Conversation.Assistant =>
  item?.kind === "assistant" &&
  Conversation.differences([{ ...item, text: expected.text ?? item.text }], [assistantOf(expected)]).length === 0

/** What followed a turn, if the next request is this one, the model's turn, its answers, and no other past. */
const continuation = (
  recorded: Conversation.Conversation,
  expected: Fixtures.Expected,
  next: Conversation.Conversation | undefined
): Continuation | undefined => {
  if (next === undefined || expected.error !== undefined) return undefined
  const { length } = recorded.items
  const past = next.items.slice(0, length)
  const said = next.items[length]
  if (Conversation.differences(recorded.items, past).length > 0 || !isMadeBy(expected, said)) return undefined
  const after = next.items.slice(length + 1)
  const answers = after.slice(0, said.calls.length).filter((item) => item.kind === "result")
  const extra = after.slice(said.calls.length)
  const isPlain = answers.length === said.calls.length && extra.every((item) => item.kind === "user")
  return isPlain ? { answers, extra } : undefined
}

/** Requests as if the client had sent all of the past with each of them. */
const wholeRequests = (
  conversations: ReadonlyArray<Conversation.Conversation>,
  turns: ReadonlyArray<Fixtures.Turn>
): ReadonlyArray<Conversation.Conversation> => {
  const whole: Array<Conversation.Conversation> = []
  for (const [index, conversation] of conversations.entries()) {
    const before = whole.at(-1)
    const said = turns[index - 1]?.expected
    const items = conversation.isContinued && before !== undefined && said !== undefined
      ? Conversation.joined([...before.items, assistantOf(said), ...conversation.items])
      : conversation.items
    whole.push({ ...conversation, items })
  }
  return whole
}

/** The turns of a session, or nothing if its requests were not recorded. */
export const turns = (
  fixture: Fixtures.Fixture,
  protocol: Protocols.Protocol
): ReadonlyArray<Turn> | undefined => {
  const found = fixture.turns.map((turn) => read(protocol, turn.request)).filter((item) => item !== undefined)
  if (found.length < fixture.turns.length) return undefined
  const whole = wholeRequests(found, fixture.turns)
  return fixture.turns.map(({ answer, expected }, index) => {
    const recorded = whole[index]!
    return { answer, expected, recorded, next: continuation(recorded, expected, whole[index + 1]) }
  })
}
