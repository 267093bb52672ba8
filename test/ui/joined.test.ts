/** Deltas that are joined: what a reader gets of each text is what was said, in its order and in its time. */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Stream from "effect/Stream"
import type { Event } from "heddle"
import { Simulation } from "heddle/testing"
import * as Paced from "../../src/ui/internal/paced.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import { property } from "../support/property.ts"

type PublicEvent = Event.PublicEvent

/** One event of a run, or of one inside handlers, and the time before it. Models choose ids: these are easily confused. */
const said = Arbitrary.all({
  kind: oneOf("text", "text", "reasoning", "arguments", "arguments", "other"),
  id: oneOf("a", "a", "a", "a", "a", "b", "b", "a b", "a TextDelta b", "", null),
  path: oneOf<ReadonlyArray<string>>(
    [],
    [],
    ["c"],
    ["c"],
    ["c"],
    ["c"],
    ["c"],
    ["d"],
    ["d"],
    ["c", "c"],
    ["d", "c"],
    ["c", "d"],
    ["c c"],
    ["c TextDelta"],
    [""]
  ),
  wait: oneOf(0, 0, 0, 0, 0, 1, 10, 49, 50, 51, 400)
})

type Said = typeof said extends Arbitrary.Arbitrary<infer A> ? A : never

const runs = Arbitrary.all({
  all: Arbitrary.array(said, { minLength: 1, maxLength: 30 }),
  joinMillis: oneOf(0, 1, 50, 50, 50),
  end: oneOf("whole", "fails"),
  chunkSize: oneOf(1, 1, 3),
  readerPause: oneOf(0, 0, 20)
})

/** The events of a run. The piece of each delta is its number, by which it is known again. */
const eventsOf = (all: ReadonlyArray<Said>): ReadonlyArray<PublicEvent> =>
  all.map(({ id, kind, path }, index) => {
    const piece = `${index};`
    const inner = kind === "text"
      ? { _tag: "TextDelta", id, delta: piece }
      : kind === "reasoning"
      ? { _tag: "ReasoningDelta", id, delta: piece }
      : kind === "arguments"
      ? { _tag: "ToolCallDelta", id: id ?? "", argumentsDelta: piece }
      : { _tag: "ToolExecutionStarted", id: id ?? "", name: piece }
    return path.reduceRight<object>(
      (nested, outer) => ({ _tag: "ToolProgress", id: outer, name: "sub", nested }),
      inner
    )
  }) as unknown as ReadonlyArray<PublicEvent>

interface Piece {
  readonly index: number
  /** The place of the event: the calls around it, its kind and its id. */
  readonly key: string
  readonly path: string
  readonly kind: string
}

/** The pieces that an event is made of. */
const piecesOf = (event: PublicEvent, path: ReadonlyArray<string> = []): ReadonlyArray<Piece> => {
  const any = event as any
  if (any.nested !== undefined) return piecesOf(any.nested, [...path, any.id])
  const text: string = any.delta ?? any.argumentsDelta ?? any.name
  return text.split(";").slice(0, -1).map((index) => ({
    index: Number(index),
    path: JSON.stringify(path),
    kind: any._tag,
    key: JSON.stringify([path, any._tag, any.id])
  }))
}

const isSaid = ({ kind }: Piece): boolean => kind === "TextDelta" || kind === "ReasoningDelta"

describe("joined deltas", () => {
  property(
    "W-01: each text of each inner run is complete and in order, and held no longer than allowed",
    runs,
    ({ all, chunkSize, end, joinMillis, readerPause }) =>
      Effect.gen(function*() {
        const events = eventsOf(all)
        const arrived: Array<number> = []
        const given: Array<{ readonly event: PublicEvent; readonly at: number }> = []
        const chunks = Array.from({ length: Math.ceil(events.length / chunkSize) }, (_, at) => at * chunkSize)
        const source = Stream.fromIterable(chunks).pipe(
          Stream.mapEffect((from) =>
            Effect.gen(function*() {
              const wait = all[from]?.wait ?? 0
              if (wait > 0) yield* Effect.sleep(wait)
              const now = yield* Clock.currentTimeMillis
              const chunk = events.slice(from, from + chunkSize)
              arrived.push(...chunk.map(() => now))
              return chunk
            })
          ),
          Stream.flattenIterable,
          end === "fails" ? (stream) => Stream.concat(stream, Stream.fail("gone")) : (stream) => stream
        )
        const identity = () => ({ push: (event: PublicEvent) => [event], end: () => [] })
        const { exit } = yield* Simulation.run(
          Paced.encoded(source, identity, joinMillis).pipe(
            Stream.runForEach((event) =>
              Effect.gen(function*() {
                given.push({ event, at: yield* Clock.currentTimeMillis })
                if (readerPause > 0) yield* Effect.sleep(readerPause)
              })
            )
          )
        )
        const problems: Array<string> = []
        if (exit === undefined || Exit.isFailure(exit) !== (end === "fails")) problems.push(`the end: ${String(exit)}`)
        const before = events.flatMap((event) => piecesOf(event))
        const after = given.flatMap(({ at, event }) => piecesOf(event).map((piece) => ({ ...piece, at })))
        const compare = (what: string, select: (pieces: ReadonlyArray<Piece>) => ReadonlyArray<unknown>) => {
          const [right, seen] = [JSON.stringify(select(before)), JSON.stringify(select(after))]
          if (right !== seen) problems.push(`${what}: ${seen} in place of ${right}`)
        }
        for (const key of new Set(before.map((piece) => piece.key))) {
          compare(
            `the text of ${key}`,
            (pieces) => pieces.filter((piece) => piece.key === key).map(({ index }) => index)
          )
        }
        compare("the pieces", (pieces) => [...pieces].map(({ index, key }) => `${index} ${key}`).sort())
        compare("the order of texts", (pieces) => pieces.filter(isSaid).map(({ index }) => index))
        // Whatever is no delta stays where it was among all deltas.
        const others = (pieces: ReadonlyArray<Piece>) => {
          let count = 0
          const places = new Map<number, number>()
          for (const { index, kind } of pieces) places.set(index, kind === "ToolExecutionStarted" ? -++count : count)
          return Array.from(places).sort(([left], [right]) => left - right)
        }
        compare("the place of other events", others)
        // A reader that pauses delays what it reads.
        const held = readerPause > 0 ? [] : after.filter(({ at, index }) => at - (arrived[index] ?? 0) > joinMillis)
        for (const { at, index, key } of held) {
          problems.push(`${index} of ${key} was held ${at - (arrived[index] ?? 0)} ms`)
        }
        // What could be joined is: only another event, or the change from one text to another, divides the pieces of a key.
        const divides = (from: number, to: number): boolean => {
          let last: Piece | undefined
          return before.some((piece) => {
            if (piece.kind === "ToolExecutionStarted") last = undefined
            const isChange = isSaid(piece) && last !== undefined && last.key !== piece.key
            if (isSaid(piece)) last = piece
            return piece.index > from && piece.index <= to && (isChange || piece.kind === "ToolExecutionStarted")
          })
        }
        const latest = new Map<string, { readonly index: number; readonly at: number }>()
        for (const { at, event } of joinMillis === 0 ? [] : given) {
          const own = piecesOf(event)
          const [{ index, key, kind } = { index: 0, key: "", kind: "" }] = own
          const earlier = latest.get(key)
          if (
            kind !== "ToolExecutionStarted" && earlier?.at === at && readerPause === 0 && !divides(earlier.index, index)
          ) {
            problems.push(`${earlier.index} and ${index} of ${key} came in two pieces at one time`)
          }
          latest.set(key, { index: own.at(-1)?.index ?? 0, at })
        }
        return problems
      }),
    2000,
    [{ id: "W-01", seed: "1480060277", at: 592, size: 10 }]
  )
})
