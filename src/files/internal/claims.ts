/**
 * The claims of a store in files: one file for each session that has been claimed, with the owner, the end by the clock of
 * the machine, and the process of the owner, whose death ends the claim at once. The caller holds the lock of the session.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as FileSystem from "effect/FileSystem"
import type * as PlatformError from "effect/PlatformError"
import * as Result from "effect/Result"
import * as Json from "../../internal/json.ts"
import type * as Stores from "../../internal/session/store.ts"
import * as JournalFile from "./journalFile.ts"
import * as Locks from "./locks.ts"

/** A claim as its file has it. */
interface Claimed extends Stores.Claim {
  /** The process of the owner. */
  readonly by: Locks.Process
}

const claimIn = (text: string): Claimed | undefined => {
  const parsed = Json.parse(text)
  if (Result.isFailure(parsed) || !Json.isObject(parsed.success)) return undefined
  const { by, owner, until } = parsed.success
  const process = Locks.processIn(JSON.stringify(by ?? null))
  return typeof owner === "string" && typeof until === "number" && process !== undefined
    ? { owner, until, by: process }
    : undefined
}

/** The claims in files that have these paths for the names of sessions. */
export const make = (fs: FileSystem.FileSystem, fileOf: (name: string) => string) =>
  Effect.map(Locks.self(fs), (self) => {
    const remove = (name: string) => fs.remove(fileOf(name), { force: true })

    /** The claim of a session, and whether it holds now. */
    const held = (name: string) =>
      Effect.gen(function*() {
        const text = yield* fs.readFileString(fileOf(name)).pipe(
          Effect.catchIf((error) => error.reason._tag === "NotFound", () => Effect.succeed(""))
        )
        const found = claimIn(text)
        const now = yield* Clock.currentTimeMillis
        const holds = found !== undefined && found.until > now && (yield* Locks.isAlive(fs, found.by))
        return { found, holds, now }
      })

    const take = (name: string, owner: string, until: number): Effect.Effect<
      Stores.Claim,
      PlatformError.PlatformError
    > => {
      const text = JSON.stringify({ owner, until, by: self })
      return Effect.as(JournalFile.replace(fs, fileOf(name), new TextEncoder().encode(text)), { owner, until })
    }

    return {
      remove,
      held,
      take,
      claim: (name: string, owner: string, termMillis: number) =>
        Effect.flatMap(held(name), ({ found, holds, now }) =>
          holds && found !== undefined && found.owner !== owner
            ? Effect.succeed<Stores.Claim>({ owner: found.owner, until: found.until })
            : take(name, owner, now + termMillis)),
      release: (name: string, owner: string) =>
        Effect.flatMap(held(name), ({ found }) => found?.owner === owner ? remove(name) : Effect.void)
    }
  })
