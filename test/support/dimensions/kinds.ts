/** What handlers do, and what a call comes to by it. */
import * as Effect from "effect/Effect"
import { Tool } from "heddle"

/** What a call came to, in one word: an outcome, the reason of a `ToolError`, or what the handler reported itself. */
export type Word = "Ok" | "AskUser" | "Halt" | "reported" | Tool.ToolError["reason"]

interface Kind {
  /** What a call of it comes to when it is run. */
  readonly becomes: Word
  /** What the handler does once it has waited; by default it succeeds. */
  readonly does?: (attempt: number) => Effect.Effect<unknown, unknown>
  /** How it waits before that; by default it sleeps for the latency of its call. */
  readonly waits?: Effect.Effect<void>
  /** What it forks before it waits. It has returned when the fiber has not ended; the call is alive as long as that is. */
  readonly forks?: Effect.Effect<void>
  /** What it returns instead of an Effect. */
  readonly returns?: unknown
  /** The tool that is called; by default `look` or `work`, by whether the call is read-only. */
  readonly tool?: string
  /** How it ignores interruption: `"late"` ends by itself some time later, `"never"` does not end. */
  readonly refuses?: "late" | "never"
  /** The same where handlers block interruption, and are interrupted when their grace period is over. */
  readonly whenBlocking?: "late"
}

const cycle: { self?: unknown } = {}
cycle.self = cycle

/** The first is the simplest: shrinking goes there. */
const generated = {
  ok: { becomes: "Ok" },
  object: { becomes: "Ok", does: () => Effect.succeed({ celsius: 7, names: ["a", "b"] }) },
  nothing: { becomes: "Ok", does: () => Effect.void },
  fail: { becomes: "reported", does: () => Effect.fail(Symbol.for("not_found")) },
  die: { becomes: "handler_raised", does: () => Effect.die("plain value") },
  throw: {
    becomes: "handler_raised",
    does: () => {
      throw new Error("kaboom")
    }
  },
  exit: { becomes: "handler_exit", does: () => Effect.interrupt },
  invalid: { becomes: "invalid_return", returns: 42 },
  ask: { becomes: "AskUser", does: () => Effect.succeed(Tool.askUser("Which one?", ["a", "b"])) },
  halt: { becomes: "Halt", does: () => Effect.succeed(Tool.halt("done_early", { v: 1 })) },
  reserved: { becomes: "invalid_return", does: () => Effect.succeed(Tool.halt("completed", 1)) },
  unencodable: { becomes: "encoding_failed", does: () => Effect.succeed(cycle) },
  child: { becomes: "Ok", does: () => Effect.as(Effect.forkChild(Effect.never), "child") },
  retry: {
    becomes: "Ok",
    tool: "retry",
    waits: Effect.sleep(10),
    does: (attempt) => attempt < 3 ? Effect.fail(`attempt ${attempt}`) : Effect.succeed(attempt)
  },
  never: { becomes: "timeout", does: () => Effect.never },
  slowStop: {
    becomes: "timeout",
    does: () => Effect.onInterrupt(Effect.never, () => Effect.sleep(10)),
    whenBlocking: "late"
  },
  late: { becomes: "abandoned", waits: Effect.uninterruptible(Effect.sleep(303)), refuses: "late" },
  refuse: { becomes: "abandoned", waits: Effect.uninterruptible(Effect.never), refuses: "never" },
  lateChild: { becomes: "Ok", forks: Effect.uninterruptible(Effect.sleep(303)), refuses: "late" },
  deafChild: { becomes: "Ok", forks: Effect.uninterruptible(Effect.never), refuses: "never" },
  block: { becomes: "Ok", tool: "block" },
  keyed: { becomes: "Ok", tool: "keyed" },
  /** A run of its own, with two calls. */
  nested: { becomes: "Ok", tool: "delegate" },
  /** One of the two never stops. */
  nestedDeaf: { becomes: "Ok", tool: "delegate" },
  unknown: { becomes: "unknown_tool", tool: "nobody" },
  misnamed: { becomes: "unknown_tool", tool: "functions.work" },
  manual: { becomes: "Ok", tool: "manual" },
  badArguments: { becomes: "invalid_arguments" }
} satisfies { readonly [name: string]: Kind }

/** What only planted handlers do. */
const planted = {
  leak: {
    becomes: "Ok",
    does: () => Effect.asVoid(Effect.forkDetach(Effect.sleep(10_000), { startImmediately: true }))
  }
} satisfies { readonly [name: string]: Kind }

export type KindName = keyof typeof generated | keyof typeof planted

export const kinds: { readonly [Name in KindName]: Kind } = { ...generated, ...planted }

/** The names of the kinds that are generated. */
export const kindNames = Object.keys(generated) as ReadonlyArray<keyof typeof generated>
