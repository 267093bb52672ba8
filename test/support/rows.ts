/**
 * A scenario as a row: what is called, under which policy, and what has to come of it at which millisecond. A row that
 * leaves `marks` out does not check them. In every row no call runs beside an unsafe one, and nothing is left at the end.
 */
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Floor, type Mark, type Work } from "./floor.ts"
import { assertClean, assertSeen, type Given, type Play, type Scene, type Seen } from "./seen.ts"

export interface Row {
  readonly name: string
  readonly works: (floor: Floor) => ReadonlyArray<Work>
  readonly given?: Given
  readonly results: ReadonlyArray<Seen>
  readonly marks?: ReadonlyArray<Mark>
  readonly also?: (scene: Scene, floor: Floor) => void
}

/** Plays a row and holds what came of it to what it says. */
export const holds = (row: Row, play: Play): Effect.Effect<void> =>
  Effect.gen(function*() {
    const floor = new Floor(row.given?.maxParallel)
    const scene = yield* play(row.works(floor), row.given)
    assertSeen(scene.results, row.results)
    if (row.marks !== undefined) assert.deepStrictEqual(floor.marks, row.marks)
    row.also?.(scene, floor)
    assertClean(floor, scene.sleeping)
  })
