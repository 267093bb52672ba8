/**
 * The calling client and its permissions.
 */
import * as McpSchema from "effect/ai/McpSchema"
import type * as McpEffect from "effect/ai/McpServer"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as HttpServerRequest from "effect/http/HttpServerRequest"
import type * as Access from "../../server/internal/access.ts"
import type * as Refusals from "../../server/internal/refusal.ts"

/** Client of a request. */
export interface Caller {
  /** Principal making the request. */
  readonly by: string
  /** Principal it acts for. */
  readonly principal: string
  readonly request: HttpServerRequest.HttpServerRequest
  /** Transport name in spans. */
  readonly transport: "tcp" | "pipe"
  /** Message id, if known. */
  readonly messageId?: string | undefined
  /** Asks whether the client may do something. */
  readonly may: (question: Access.Question) => Effect.Effect<unknown, Refusals.Refusal>
  /** Questions waiting in a legacy client's session. */
  readonly waiting: Set<Access.Question>
}

/** The client writing to standard input. It started this process. */
export const local: Caller = {
  by: "local",
  principal: "local",
  request: HttpServerRequest.fromWeb(new Request("http://localhost/mcp")),
  transport: "pipe",
  may: () => Effect.void,
  waiting: new Set()
}

/** Client of the current request. */
export const Current: Context.Reference<Caller> = Context.Reference("heddle/mcp/Caller", {
  defaultValue: () => local
})

/** Asks a client's user. Meanwhile its session accepts answers only from principals allowed to answer. */
export const asking = <A, E, R>(
  { waiting }: Caller,
  question: Access.Question,
  ask: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.acquireUseRelease(
    Effect.sync(() => waiting.add(question)),
    () => ask,
    () => Effect.sync(() => waiting.delete(question))
  )

/** Progress reports to a call's client, sent if the client requested progress. */
export interface Progress {
  readonly report: (value: unknown) => Effect.Effect<void>
}

const textOf = (value: unknown): string => typeof value === "string" ? value : JSON.stringify(value) ?? ""

/** Reads progress in the protocol's form. */
const numbered = (
  value: unknown
): { readonly progress: number; readonly total?: number; readonly message?: string } | undefined => {
  if (typeof value === "number") return { progress: value }
  if (typeof value !== "object" || value === null) return undefined
  const { message, progress, total } = value as Record<string, unknown>
  if (typeof progress !== "number" || !Number.isFinite(progress)) return undefined
  return {
    progress,
    ...(typeof total === "number" ? { total } : {}),
    ...(typeof message === "string" ? { message } : {})
  }
}

/** Returns the progress report for a call's client. */
export const progress = (
  server: McpEffect.McpServer["Service"],
  context: McpSchema.McpRequestContext["Service"]
): Progress => {
  const { progressToken } = { ...context.requestMetadata } as { readonly progressToken?: string | number }
  let count = 0
  return {
    report: (value) =>
      Effect.suspend(() => {
        if (progressToken === undefined) return Effect.void
        const sent = numbered(value) ?? { progress: ++count, message: textOf(value) }
        const notice = server.notifications["notifications/progress"]({ progressToken, ...sent })
        return Effect.provideService(Effect.ignore(notice), McpSchema.McpRequestContext, context)
      })
  }
}
