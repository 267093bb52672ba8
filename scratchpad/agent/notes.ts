/**
 * Where notes are kept: in `notes.md` of the folder that the user has named, and nowhere else; without a folder they are
 * returned and not written. A line is written in one uninterruptible operation, so that a stop leaves whole lines, and a
 * line that is there already is not written again. Links are not followed out of the agent's folder.
 */
import * as Effect from "effect/Effect"
import type * as FileSystem from "effect/FileSystem"
import type * as Path from "effect/Path"
import type * as PlatformError from "effect/PlatformError"
import { detailOf, FileProblem } from "./problem.ts"

/** What became of a note. */
export type Noted =
  | { readonly _tag: "Written" | "Known"; readonly line: string; readonly path: string }
  | { readonly _tag: "Planned"; readonly line: string }

/** What is known of a note that may have been written: what became of it, that it is not there, or nothing. */
export type Found = Noted | "missing" | "unseen"

/** Where the notes are, as an absolute path, and the folder that the agent works in. */
export interface Place {
  readonly root: string
  readonly folder: string
  readonly fs: FileSystem.FileSystem
  readonly system: Path.Path
}

/** Beyond this size notes are added to without a look at what is there. */
const maxBytes = 1_000_000

const lineOf = (note: string): string => `- ${note.replaceAll(/\s+/g, " ").trim()}`

/** Whether a path is a folder or lies in it. */
export const isWithin = (root: string, target: string, system: Path.Path): boolean => {
  const relative = system.relative(root, target)
  return relative !== ".." && !relative.startsWith(`..${system.sep}`) && !system.isAbsolute(relative)
}

/** Says what would be written. */
export const plan = (note: string): Effect.Effect<Noted> => Effect.succeed({ _tag: "Planned", line: lineOf(note) })

/** The real path of the nearest folder above a path that is there. */
const nearest = (
  place: Pick<Place, "fs" | "system">,
  path: string
): Effect.Effect<string, PlatformError.PlatformError> =>
  Effect.catch(place.fs.realPath(path), (error) => {
    const parent = place.system.dirname(path)
    return error.reason._tag === "NotFound" && parent !== path ? nearest(place, parent) : Effect.fail(error)
  })

/** What stands in the place of the notes, `undefined` if nothing does; anything but a file is a problem. */
const present = ({ fs }: Place, file: string) =>
  fs.lstat(file).pipe(
    Effect.catch((error) => error.reason._tag === "NotFound" ? Effect.undefined : Effect.fail(error)),
    Effect.flatMap((info) => {
      if (info === undefined || info.type === "File") return Effect.succeed(info)
      return Effect.fail(info.type === "SymbolicLink" ? "it is a link" : "it is no file")
    })
  )

/** The notes, or why they are not looked at: there are none, or too many. */
const textOf = Effect.fnUntraced(function*(place: Place, file: string) {
  const info = yield* present(place, file)
  if (info === undefined) return { isSeen: true, text: "" }
  return Number(info.size) > maxBytes
    ? { isSeen: false, text: "" }
    : { isSeen: true, text: yield* place.fs.readFileString(file) }
})

const fileOf = ({ folder, system }: Place): string => system.join(folder, "notes.md")

const keep = Effect.fnUntraced(function*(place: Place, note: string) {
  const { folder, fs, root, system } = place
  const line = lineOf(note)
  const isInside = isWithin(root, folder, system)
  if (isInside && !isWithin(root, yield* nearest(place, folder), system)) {
    return yield* Effect.fail("a link leads out of the folder")
  }
  yield* fs.makeDirectory(folder, { recursive: true })
  const path = fileOf(place)
  const { text } = yield* textOf(place, path)
  if (text.split("\n").includes(line)) return { _tag: "Known", line, path } satisfies Noted
  const gap = text === "" || text.endsWith("\n") ? "" : "\n"
  yield* Effect.uninterruptible(fs.writeFileString(path, `${gap}${line}\n`, { flag: "a" }))
  return { _tag: "Written", line, path } satisfies Noted
})

/** Looks whether a note is there. */
const look = Effect.fnUntraced(function*(place: Place, note: string) {
  const line = lineOf(note)
  const path = fileOf(place)
  const { isSeen, text } = yield* textOf(place, path)
  if (!isSeen) return "unseen" satisfies Found
  return text.split("\n").includes(line) ? { _tag: "Written", line, path } satisfies Found : "missing" satisfies Found
})

const unwritable = ({ folder }: Place) => (error: string | PlatformError.PlatformError): FileProblem => {
  const detail = typeof error === "string" ? error : detailOf(error)
  return new FileProblem({ reason: "unwritable", path: folder, detail })
}

/** Keeps notes in a folder, which is made when the first one is written. */
export const make = (place: Place) => (note: string): Effect.Effect<Noted, FileProblem> =>
  Effect.mapError(keep(place, note), unwritable(place))

/** Finds a note that may have been written in such a folder. */
export const find = (place: Place) => (note: string): Effect.Effect<Found, FileProblem> =>
  Effect.mapError(look(place, note), unwritable(place))
