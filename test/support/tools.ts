/**
 * The tools of the contract's scenarios, each named for what it does.
 */
import * as Effect from "effect/Effect"
import { Tool } from "heddle"

/** Arguments of any shape: the scenarios are about running calls, not about decoding them. */
export const anything = { type: "object" } as const

export const notFound = Symbol.for("not_found")

export const kaboom = new Error("kaboom")

/** A function, which cannot be written as JSON. */
export const unwritable = () => "never called"

export const echo = Tool.make("echo", { parameters: anything, handler: (args) => Effect.succeed(args) })

export const fail = Tool.make("fail", { parameters: anything, handler: () => Effect.fail(notFound) })

export const failS = Tool.make("failS", { parameters: anything, handler: () => Effect.fail("nope") })

export const boom = Tool.make("boom", {
  parameters: anything,
  handler: (): Effect.Effect<never> => {
    throw kaboom
  }
})

export const weird = Tool.make("weird", { parameters: anything, handler: (() => 42) as never })

export const ask = Tool.make("ask", {
  parameters: anything,
  handler: () => Effect.succeed(Tool.askUser("Which city?"))
})

export const askO = Tool.make("askO", {
  parameters: anything,
  handler: () => Effect.succeed(Tool.askUser("Which city?", [{ kind: "pick" }]))
})

export const stop1 = Tool.make("stop1", {
  parameters: anything,
  handler: () => Effect.succeed(Tool.halt("done_early", { v: 1 }))
})

export const slow = <const Name extends string = "slow">(millis: number, name?: Name) =>
  Tool.make(name ?? "slow" as Name, { parameters: anything, handler: () => Effect.as(Effect.sleep(millis), "slow") })

export const fn = Tool.make("fn", { parameters: anything, handler: () => Effect.succeed(unwritable) })

/** The name the contract gives it, `none`, is a tool choice and so taken. */
export const none = Tool.make("no_handler", { parameters: anything })

export const big = Tool.make("big", { parameters: anything, handler: () => Effect.succeed("0123456789") })
