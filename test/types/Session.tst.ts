/**
 * What the compiler knows of a session that is kept: an operation under a claim leaves the session under that claim.
 */
import * as Effect from "effect/Effect"
import { type Adapter, type Journal, Session } from "heddle"
import { describe, expect, test } from "tstyche"

declare const claimed: Session.Claimed
declare const kept: Session.Kept

describe("N-11: what an operation leaves behind", () => {
  test("has the claim that the session was loaded under", () => {
    expect(Session.keep(claimed, (session) => Session.appendUser(session, "Hi"))).type.toBe<
      Effect.Effect<
        Session.Outcome<Session.Session, Session.Claimed>,
        Session.SessionError | Session.KeepError,
        Session.Store
      >
    >()
    expect<Session.Outcome<number, Session.Claimed>>().type.toBeAssignableTo<Session.Claimed>()
    expect(Session.resume(claimed)).type.toBe<
      Effect.Effect<
        Session.Outcome<Session.Done, Session.Claimed>,
        Session.OperationError | Session.KeepError,
        Adapter.Adapter | Session.Store
      >
    >()
    expect(Session.abandon(claimed)).type.toBe<
      Effect.Effect<Session.Outcome<Session.Session, Session.Claimed>, Session.KeepError, Session.Store>
    >()
  })

  test("stays known where a combinator of effects expects any", () => {
    expect(Effect.all([Session.resume(claimed)])).type.toBe<
      Effect.Effect<
        [Session.Outcome<Session.Done, Session.Claimed>],
        Session.OperationError | Session.KeepError,
        Adapter.Adapter | Session.Store
      >
    >()
  })

  test("can be assigned to the variable that the claim was read into", () => {
    const program = function*() {
      let current = yield* Session.claim("s")
      current = yield* Session.keep(current, (session) => Session.reply(session, "Hi"))
      current = yield* Session.resume(current)
      current = yield* Session.abandon(current)
      return current.claim
    }
    expect(program).type.toBeCallableWith()
    expect<ReturnType<typeof program> extends Generator<any, infer A, any> ? A : never>().type.toBe<
      Journal.HeldClaim
    >()
  })

  test("has no claim where there was none", () => {
    expect(Session.keep(kept, (session) => Session.appendUser(session, "Hi"))).type.toBe<
      Effect.Effect<Session.Outcome<Session.Session>, Session.SessionError | Session.KeepError, Session.Store>
    >()
    expect<Session.Outcome<number>>().type.not.toBeAssignableTo<Session.Claimed>()
  })
})

declare const session: Session.Session

describe("a call that fits neither form of a function that takes the session first or last", () => {
  test("is explained by the form that takes the session first, which names the wrong argument", () => {
    // @ts-expect-error Overload 2 of 2, '(session: Session, ... type 'number' is not assignable to parameter of type 'string'
    Session.approve(session, 5)
    // @ts-expect-error Overload 2 of 2, '(session: Session, ... type 'number' is not assignable to parameter of type 'string'
    Session.answer(session, 5, "yes")
    // @ts-expect-error Overload 2 of 2, '(session: Session, ... type 'number' is not assignable to parameter of type 'string'
    Session.deny(session, 5)
    // @ts-expect-error Argument of type 'number' is not assignable to parameter of type 'string'
    Session.deny(session, "c0", 5)
  })

  test("is explained by the form that takes the session last where no session is given", () => {
    // @ts-expect-error Argument of type 'number' is not assignable to parameter of type 'string'
    Session.approve(5)
  })
})
