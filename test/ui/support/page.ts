/** Pages of the AI SDK: the message that each major version of its reader makes of a run, and what is wrong with it. */
import * as ai7 from "ai"
import type { UIMessage } from "ai"
import * as ai5 from "ai-v5"
import * as ai6 from "ai-v6"
import { type Event, Message } from "heddle"
import { UiStream } from "heddle/ui"
import type { Case } from "../../support/cases.ts"
import { callsOf, shown, textsOf } from "../../support/pages.ts"

/** The parts of the package `ai` that a page needs, which its types have in other forms in each major version. */
interface Library {
  readonly AbstractChat: any
  readonly DefaultChatTransport: any
  readonly readUIMessageStream: (options: object) => AsyncIterable<UIMessage>
  readonly uiMessageChunkSchema: any
  readonly lastAssistantMessageIsCompleteWithToolCalls: (chat: { readonly messages: Array<any> }) => boolean
}

/** The major versions of `ai`. */
const libraries: { readonly [protocol in UiStream.Protocol]: Library } = {
  5: ai5 as unknown as Library,
  6: ai6 as unknown as Library,
  7: ai7 as unknown as Library
}

export const protocols: ReadonlyArray<UiStream.Protocol> = [5, 6, 7]

/** The chunks of a run, through JSON. */
export const chunksOf = (
  events: ReadonlyArray<Event.PublicEvent>,
  options: UiStream.Options = {}
): Array<UiStream.Chunk> => {
  const encoder = UiStream.make(options)
  const chunks = [...events.flatMap(encoder.push), ...encoder.end()]
  return JSON.parse(JSON.stringify(chunks)) as Array<UiStream.Chunk>
}

export interface Read {
  readonly message: UIMessage | undefined
  readonly error: unknown
}

/** The message that the reader of a major version makes of chunks. */
export const readMessage = async (
  chunks: ReadonlyArray<UiStream.Chunk>,
  message?: UIMessage,
  protocol: UiStream.Protocol = 7
): Promise<Read> => {
  const stream = new ReadableStream<UiStream.Chunk>({
    start: (controller) => {
      for (const chunk of chunks) controller.enqueue(chunk)
      controller.close()
    }
  })
  let last: UIMessage | undefined
  try {
    const read = libraries[protocol].readUIMessageStream({
      stream,
      terminateOnError: true,
      // The reader changes the message that it is given.
      ...(message === undefined ? {} : { message: structuredClone(message) })
    })
    for await (const one of read) last = one
    return { message: last, error: undefined }
  } catch (error) {
    return { message: last, error }
  }
}

/** The chunks that a major version of the client refuses: it shows the dump of its schema in place of the message. */
export const refusedBy = async (
  protocol: UiStream.Protocol,
  chunks: ReadonlyArray<UiStream.Chunk>
): Promise<ReadonlyArray<string>> => {
  const { uiMessageChunkSchema } = libraries[protocol]
  const schema = typeof uiMessageChunkSchema === "function" ? uiMessageChunkSchema() : uiMessageChunkSchema
  const refused = await Promise.all(chunks.map(async (chunk) => (await schema.validate(chunk)).success !== true))
  return chunks.flatMap((chunk, index) => refused[index] === true ? [`refused: ${JSON.stringify(chunk)}`] : [])
}

type Part = UIMessage["parts"][number]
type ToolPart = Extract<Part, { type: "dynamic-tool" }>

/** The message without the steps that were discarded, where the client cannot discard them itself. */
export const withoutDiscarded = (message: UIMessage | undefined): UIMessage | undefined => {
  if (message === undefined) return undefined
  const steps: Array<Array<Part>> = []
  for (const part of message.parts) {
    if (part.type === "step-start" || steps.length === 0) steps.push([])
    steps.at(-1)?.push(part)
  }
  const isDiscarded = (parts: ReadonlyArray<Part>) => parts.some(({ type }) => type === "data-heddle-reset")
  // A question that is asked again has its first place.
  const kept = (parts: Array<Part>) =>
    isDiscarded(parts) ? parts.filter(({ type }) => type === "data-heddle-question") : parts
  return { ...message, parts: steps.flatMap(kept) }
}

export const toolParts = (message: UIMessage | undefined): ReadonlyArray<ToolPart> =>
  (message?.parts ?? []).filter((part): part is ToolPart => part.type === "dynamic-tool")

/** The text of each step of a message. */
export const stepTexts = (message: UIMessage | undefined): ReadonlyArray<string> => {
  const texts: Array<string> = []
  for (const part of message?.parts ?? []) {
    if (part.type === "step-start") texts.push("")
    if (part.type === "text") texts.push((texts.pop() ?? "") + part.text)
  }
  return texts
}

/** Tells whether the page has all texts: that of a reply that broke or was stopped is in its deltas only. */
export const hasAllTexts = ({ driving }: Case, events: ReadonlyArray<Event.Event>): boolean => {
  const messages = events.filter(({ _tag }) => _tag === "MessageStarted" || _tag === "MessageCompleted")
  return !driving.hidesDeltas
    || messages.every(({ _tag }, index) => _tag === (index % 2 === 0 ? "MessageStarted" : "MessageCompleted"))
      && messages.length % 2 === 0
}

/** What a message has that nothing will ever end, in any of its parts. */
export const openIn = (message: UIMessage | undefined): ReadonlyArray<string> =>
  (message?.parts ?? []).flatMap((part) => {
    if (part.type === "dynamic-tool") return part.state === "input-streaming" ? ["a call is still open"] : []
    return (part.type === "text" || part.type === "reasoning") && part.state !== "done" ? [`open: ${part.type}`] : []
  })

/** What is wrong with the message of a run. */
export const problemsOf = (
  { error, message: whole }: Read,
  result: Event.ChatResult,
  from: number,
  hasTexts = true,
  protocol: UiStream.Protocol = 7
): ReadonlyArray<string> => {
  const problems: Array<string> = [...openIn(whole)]
  const message = withoutDiscarded(whole)
  const expect = (what: string, seen: unknown, right: unknown): void => {
    if (JSON.stringify(seen) !== JSON.stringify(right)) {
      problems.push(`${what}: ${JSON.stringify(seen)} in place of ${JSON.stringify(right)}`)
    }
  }
  const isFailed = result.outcome._tag === "Failed"
  if (isFailed !== (error !== undefined)) problems.push(`the reader's error: ${String(error)}`)
  const waiting = new Map((result.suspensions ?? []).map((one) => [one.path?.[0] ?? one.id, one] as const))
  // A reply that was stopped before it said anything is in no thread.
  const said = (texts: ReadonlyArray<string>) => texts.filter((one) => one !== "")
  if (!isFailed && hasTexts) expect("texts", said(stepTexts(message)), said(textsOf(result.thread, from)))
  const own = toolParts(message).filter(({ providerExecuted }) => providerExecuted !== true)
  const calls = callsOf(result.thread, from)
  // A run that fails takes its last turn back. The page has seen it, and shows an error in its place.
  for (const { state } of own.slice(calls.length)) expect("state of a call that was taken back", state, "output-error")
  if (!isFailed) expect("calls", own.length, calls.length)
  const last = new Map(calls.map((call) => [call.id, call]))
  // A call that came without an id has one of the page's, until its message has ended.
  const rest = [...own]
  const take = (index: number): ToolPart | undefined => index < 0 ? undefined : rest.splice(index, 1)[0]
  const byId = calls.map(({ id }) => take(rest.findIndex(({ toolCallId }) => toolCallId === id)))
  calls.forEach((call, index) => {
    const { answer, id } = call
    const { errorText, output, state } = byId[index] ?? take(0) ?? {}
    const open = last.get(id) === call ? waiting.get(id) : undefined
    if (open !== undefined) {
      const isAsked = open.kind === "approval" && protocol >= 6
      expect(`state of ${id}`, state, isAsked ? "approval-requested" : "input-available")
      const asked = message?.parts.filter((part) => part.type === "data-heddle-question") ?? []
      if (!isAsked && asked.length === 0) problems.push(`nothing says what ${id} waits for`)
    } else if (answer?.isError === true && state === "output-denied") {
      if (!Message.text(answer).includes("denied")) problems.push(`${id} is shown as denied`)
    } else if (answer?.isError === true) {
      expect(`state of ${id}`, state, "output-error")
      expect(`error of ${id}`, errorText, Message.text(answer))
    } else {
      expect(`state of ${id}`, state, "output-available")
      expect(`output of ${id}`, output, answer === undefined ? undefined : shown(answer.content))
    }
  })
  return problems
}

/** A chat of a major version of the AI SDK, over a plain state. Its `chunks` are those of all its responses. */
export const chatWith = (
  protocol: UiStream.Protocol,
  api: string,
  options: { readonly messages?: ReadonlyArray<UIMessage>; readonly fetch?: typeof fetch } = {}
): any => {
  const { AbstractChat, DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } = libraries[protocol]
  const { messages = [], fetch: send = fetch } = options
  const approved = (libraries[protocol] as any).lastAssistantMessageIsCompleteWithApprovalResponses ?? (() => false)
  const state: any = {
    status: "ready",
    error: undefined,
    messages: [...messages],
    pushMessage: (message: UIMessage) => void (state.messages = [...state.messages, message]),
    popMessage: () => void (state.messages = state.messages.slice(0, -1)),
    replaceMessage: (index: number, message: UIMessage) =>
      void (state.messages = state.messages.with(index, structuredClone(message))),
    snapshot: (value: unknown) => structuredClone(value)
  }
  const posts: Array<any> = []
  const finishes: Array<{ readonly finishReason?: string; readonly isError?: boolean }> = []
  const chat = new AbstractChat({
    id: "s1",
    state,
    generateId: () => crypto.randomUUID(),
    sendAutomaticallyWhen: (given: { readonly messages: Array<any> }) =>
      approved(given) || lastAssistantMessageIsCompleteWithToolCalls(given),
    onFinish: (finish: { readonly finishReason?: string }) => void finishes.push(finish),
    transport: new DefaultChatTransport({
      api,
      fetch: (url: string, init: RequestInit) => {
        if (init.method === "POST") posts.push(JSON.parse(String(init.body)))
        return send(url, init)
      }
    })
  })
  return Object.assign(chat, { posts, finishes })
}

/** Waits until nothing is under way on a page, and nothing follows by itself. */
export const settled = async (chat: any): Promise<void> => {
  const turns = async () => {
    for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve))
  }
  await turns()
  while (chat.status === "streaming" || chat.status === "submitted") await turns()
}
