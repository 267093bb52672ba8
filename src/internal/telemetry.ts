/**
 * Spans, where somebody listens. Without a tracer of its own or a span around it, a run makes none: they cost more than
 * the steps they describe. Attributes name things and never carry arguments, results or keys.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import * as Tracer from "effect/Tracer"

export type Attributes = Readonly<Record<string, unknown>>

const isTraced = (context: Context.Context<never>): boolean =>
  context.mapUnsafe.has(Tracer.TracerKey) || context.mapUnsafe.has(Tracer.ParentSpanKey)

/** Runs an effect in a span of its own. */
export const withSpan = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  name: string,
  attributes: () => Attributes
): Effect.Effect<A, E, R> =>
  Effect.contextWith((context: Context.Context<never>) =>
    isTraced(context)
      ? Effect.withSpan(effect, name, { attributes: attributes() }) as Effect.Effect<A, E, R>
      : effect
  )

/** Puts effects under a span. */
export type Within = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

const bare: Within = (effect) => effect

/** A span that lasts as long as a scope, and a way to put effects under it. */
export const spanOf = (scope: Scope.Scope, name: string, attributes: () => Attributes): Effect.Effect<Within> =>
  Effect.contextWith((context: Context.Context<never>) =>
    isTraced(context)
      ? Effect.makeSpanScoped(name, { attributes: attributes() }).pipe(
        Scope.provide(scope),
        Effect.map((span): Within => (effect) => Effect.withParentSpan(effect, span) as typeof effect)
      )
      : Effect.succeed(bare)
  )
