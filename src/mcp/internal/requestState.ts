/**
 * States of calls waiting for their client's answer. The client holds a random id with a signature; the state itself
 * stays here.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import * as Json from "../../internal/json.ts"

/** Call owning a state. The state is invalid for another principal, tool or arguments. */
interface Subject {
  readonly principal: string
  readonly by: string
  readonly name: string
  readonly arguments: unknown
}

const hex = (bytes: ArrayBuffer): string =>
  Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("")

const bytesOf = (text: string): Uint8Array<ArrayBuffer> =>
  new Uint8Array((text.match(/../g) ?? []).map((pair) => Number.parseInt(pair, 16)))

/** Signs and verifies the texts clients hold. */
export interface Signer {
  /** Returns the text for an id, valid until a time. */
  readonly sign: (id: string, expiresAt: number, subject: Subject) => Effect.Effect<string>
  /** Returns a text's id, or `undefined` if the text is forged, expired or belongs to another call. */
  readonly open: (text: string, subject: Subject) => Effect.Effect<string | undefined>
}

const pattern = /^([0-9a-f-]{36})\.(\d{1,15})\.([0-9a-f]{64})$/

/** Makes a signer. Without a secret it uses a random key, unknown to other processes. */
export const signer = (secret: Redacted.Redacted<string> | undefined): Effect.Effect<Signer> =>
  Effect.gen(function*() {
    const { crypto } = globalThis
    const raw = secret === undefined
      ? crypto.getRandomValues(new Uint8Array(32))
      : new TextEncoder().encode(Redacted.value(secret))
    const algorithm = { name: "HMAC", hash: "SHA-256" }
    const key = yield* Effect.promise(() => crypto.subtle.importKey("raw", raw, algorithm, false, ["sign", "verify"]))
    const messageOf = (id: string, expiresAt: string, { arguments: args, by, name, principal }: Subject) =>
      new TextEncoder().encode(JSON.stringify([id, expiresAt, principal, by, name, Json.ordered(args)]))
    return {
      sign: (id, expiresAt, subject) =>
        Effect.map(
          Effect.promise(() => crypto.subtle.sign("HMAC", key, messageOf(id, String(expiresAt), subject))),
          (code) => `${id}.${expiresAt}.${hex(code)}`
        ),
      open: (text, subject) =>
        Effect.gen(function*() {
          const [, id = "", expiresAt = "", code = ""] = pattern.exec(text) ?? []
          const message = messageOf(id, expiresAt, subject)
          const isOurs = yield* Effect.promise(() => crypto.subtle.verify("HMAC", key, bytesOf(code), message))
          return isOurs && Number(expiresAt) > (yield* Clock.currentTimeMillis) ? id : undefined
        })
    }
  })

/**
 * States in memory. Each can be taken once. Beyond the limit, the principal with the most states loses its oldest
 * state.
 */
export class Memory<A> {
  private readonly states = new Map<string, { readonly by: string; readonly state: A }>()
  private readonly most: number

  constructor(most: number) {
    this.most = most
  }

  put(id: string, by: string, state: A): void {
    this.states.set(id, { by, state })
    if (this.states.size <= this.most) return
    const all = new Map<string, Array<string>>()
    for (const [id, { by }] of this.states) {
      const own = all.get(by)
      if (own === undefined) all.set(by, [id])
      else own.push(id)
    }
    const [oldest = id] = Array.from(all.values()).reduce((most, own) => own.length > most.length ? own : most)
    this.states.delete(oldest)
  }

  take(id: string): A | undefined {
    const found = this.states.get(id)
    this.states.delete(id)
    return found?.state
  }
}
