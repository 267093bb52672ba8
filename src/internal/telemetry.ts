/**
 * Spans, for a run that is traced. Without a tracer of its own or a span around it, a run makes none: they cost more
 * than the steps they describe. Attributes name things and never carry arguments, results or keys.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as References from "effect/References"
import * as Scope from "effect/Scope"
import * as Tracer from "effect/Tracer"
import * as Json from "./json.ts"

export type Attributes = Readonly<Record<string, unknown>>

/** Returns `true` if there is a tracer, or a span around the run. */
export const isTraced = (context: Context.Context<never>): boolean =>
  Context.getOrUndefined(context, Tracer.Tracer) !== undefined ||
  Context.getOrUndefined(context, Tracer.ParentSpan) !== undefined

/** Runs an effect under a new span. `onSpan` receives the span, and has to see to its end. */
export const underSpan = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  name: string,
  attributes: Attributes,
  onSpan: (span: Tracer.Span) => void
): Effect.Effect<A, E, R> =>
  Effect.flatMap(Effect.makeSpan(name, { attributes }), (span) => {
    onSpan(span)
    return Effect.withParentSpan(effect, span) as Effect.Effect<A, E, R>
  })

/** Ends a span now, unless it has ended. */
export const end = (
  span: Tracer.Span | undefined,
  exit: Exit.Exit<unknown, unknown>,
  clock: Clock.Clock,
  context: Context.Context<never>
): void => {
  if (span === undefined || span.status._tag === "Ended") return
  span.end(Context.get(context, References.TracerTimingEnabled) ? clock.currentTimeNanosUnsafe() : 0n, exit)
}

/**
 * Returns the exit with which a span ends. A span keeps it, and what a provider or a program wrote into an error may be
 * secret: of an error there are its name and its reason.
 */
const named = (exit: Exit.Exit<unknown, unknown>): Exit.Exit<unknown, unknown> =>
  Exit.isSuccess(exit) || Cause.hasInterruptsOnly(exit.cause) ? exit : Exit.fail(Json.nameOf(Cause.squash(exit.cause)))

/** Puts effects under a span. */
export type Within = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

const bare: Within = (effect) => effect

/** A span that lasts as long as a scope, if the run is traced, and a way to put effects under it. */
export const spanOf = (
  isTraced: boolean,
  scope: Scope.Scope,
  name: string,
  attributes: () => Attributes
): Effect.Effect<Within> =>
  isTraced
    ? Effect.gen(function*() {
      const span = yield* Effect.makeSpan(name, { attributes: attributes() })
      const clock = yield* Clock.Clock
      const context = yield* Effect.context<never>()
      yield* Scope.addFinalizerExit(scope, (exit) => Effect.sync(() => end(span, named(exit), clock, context)))
      return (effect) => Effect.withParentSpan(effect, span) as typeof effect
    })
    : Effect.succeed(bare)

/** The span of a step. */
export const stepSpan = (scope: Scope.Scope, requestId: string, stepIndex: number): Effect.Effect<Within> =>
  spanOf(true, scope, "heddle.step", () => ({ "heddle.request.id": requestId, "heddle.step.index": stepIndex }))
