/** The rules of a run without a run: asked at a plain place, as the loop asks them. */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import { type Adapter, type Chat, type Event, Message, Policy, type Rule, type Tool } from "heddle"
import * as Settings from "../../src/internal/ask/options.ts"
import * as Requests from "../../src/internal/ask/request.ts"
import * as ToolOptions from "../../src/internal/declare/toolOptions.ts"
import * as Rules from "../../src/internal/loop/rules.ts"
import * as Turns from "../../src/internal/loop/turns.ts"
import { Running } from "../../src/internal/stop/ownedFibers.ts"

type Options = Chat.Options<ReadonlyArray<Tool.Any>, never, never, never, never>

const silent = { stream: () => undefined as never } satisfies Adapter.Service

/** The request before the rules change it. */
const baseOf = (options: Options): Rules.Ask => {
  const { tools } = ToolOptions.offered(ToolOptions.toolbox([], options.tools ?? []))
  return {
    adapter: silent,
    system: undefined,
    mode: "auto",
    tools,
    runTools: tools,
    settings: Settings.resolve({ ...options, requestId: "run" } as {}, {}, Policy.standard, Context.empty()),
    template: Requests.template(options as {}, {}, tools)
  }
}

interface Start {
  readonly hasBegun?: boolean
  readonly toolsUntil?: number
  readonly now?: () => number
}

/** A step that said something, with calls that were answered. */
export const stepOf = (text: string, ...calls: ReadonlyArray<string>): Event.StepResult =>
  ({
    response: { outputText: text, finishReason: calls.length === 0 ? "stop" : "tool_calls" },
    toolResults: calls.map((id) => Message.tool(id, "seen")),
    thread: { messages: [], metadata: {} }
  }) as unknown as Event.StepResult

/** The rules of a run with these options, each asked with plain values. Waiting effects are run at once. */
export const seamOf = (options: Options, { hasBegun = false, now = () => 0, toolsUntil }: Start = {}) => {
  const base = baseOf(options)
  const rules = Turns.ofChat<never, never>(options as {}, {}, base, {
    hasBegun,
    now,
    deadline: toolsUntil === undefined ? undefined : { at: Infinity, toolsUntil },
    inherited: [],
    spender: undefined,
    inbox: undefined,
    running: new Running(0, Context.empty())
  })
  const at = (more: Partial<Rule.At> = {}): Rule.At => ({
    requestId: "run",
    thread: { messages: [], metadata: {} },
    steps: [],
    stepIndex: more.steps?.length ?? 0,
    attempt: 0,
    notes: [],
    noted: {},
    kept: {},
    last: undefined,
    isRepeated: false,
    ...more
  })
  const wait = <A, E>(_: string, effect: Effect.Effect<A, E>) => effect
  return {
    base,
    names: rules.map(({ name }) => name),
    asked: (more?: Partial<Rule.At>) => Rules.asked(rules, base, at(more), wait),
    replied: (replied: Partial<Rule.Replied>, more?: Partial<Rule.At>) =>
      Rules.replied(
        rules,
        { error: undefined, hasSaid: false, mayRepeat: true, usage: null, ...replied },
        at(more),
        wait
      ),
    decided: (own: Event.Outcome | undefined, more?: Partial<Rule.At>) => Rules.decided(rules, own, at(more), wait)
  }
}

/** The outcome of a run that has its answer. */
export const answered: Event.Outcome = { _tag: "Completed", finishReason: "stop" }
