/**
 * The folder the agent works in. Every path is resolved against it, symbolic links included, and one that leads out of
 * it is refused; what cannot be read is a typed failure that says why. Generated and hidden trees are not walked, and
 * neither files nor lists are read without a bound.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Path from "effect/Path"
import * as Result from "effect/Result"
import * as Notes from "./notes.ts"
import { FileProblem, problem } from "./problem.ts"

/** What a walk came to: paths relative to the folder in order, and what could not be looked into. */
export interface Listing {
  readonly paths: ReadonlyArray<string>
  readonly isCut: boolean
  readonly problems: ReadonlyArray<FileProblem>
}

/** The folder, as the tools see it. Paths go in and come out relative to it. */
export class Workspace extends Context.Service<Workspace, {
  readonly root: string
  /** The files under a path, or the path itself if it is a file. */
  readonly list: (path: string) => Effect.Effect<Listing, FileProblem>
  /** The text of a file. */
  readonly read: (path: string) => Effect.Effect<string, FileProblem>
  /** Adds a line to the notes. A line is written whole or not at all, whatever stops the run. */
  readonly note: (line: string) => Effect.Effect<Notes.Noted, FileProblem>
  /** What is known of a line that may have been added to the notes. */
  readonly noted: (line: string) => Effect.Effect<Notes.Found, FileProblem>
}>()("heddle-agent/Workspace") {}

const maxFiles = 20_000
const maxBytes = 1_000_000
const skippedFolders = new Set(
  `.cache .git .hg .idea .next .nuxt .nyc_output .pnpm-store .svn .terraform .tox .turbo .venv .vscode .yarn
  __pycache__ bower_components build coverage dist node_modules out target vendor venv`.split(/\s+/)
)
const skippedFiles =
  /\.(tsbuildinfo|map|lock|min\.\w+|png|jpe?g|gif|webp|ico|pdf|zip|gz|tgz|tar|7z|woff2?|ttf|otf|eot|mp[34]|mov|wasm|so|dylib|dll|exe|bin|class|jar|o|a|pyc|sqlite|db)$|(^|\/)(package-lock\.json|pnpm-lock\.yaml|npm-shrinkwrap\.json|\.DS_Store)$/i

const outside = (path: string): FileProblem =>
  new FileProblem({ reason: "outside", path, detail: "it is outside of the folder" })

const decodeText = (path: string, bytes: Uint8Array): Result.Result<string, FileProblem> =>
  bytes.subarray(0, 8000).includes(0)
    ? Result.fail(new FileProblem({ reason: "no_text", path, detail: "it holds no text" }))
    : Result.succeed(new TextDecoder().decode(bytes))

type Resolve = (path: string) => Effect.Effect<string, FileProblem>

/** The real path of a path inside `root`. A link is followed before it is judged. */
const makeResolve = (root: string, fs: FileSystem.FileSystem, system: Path.Path): Resolve =>
  Effect.fnUntraced(function*(path) {
    if (path.includes("\0")) return yield* outside(path)
    const target = system.resolve(root, path)
    if (!Notes.isWithin(root, target, system)) return yield* outside(path)
    const real = yield* Effect.mapError(fs.realPath(target), problem(path))
    return Notes.isWithin(root, real, system) ? real : yield* outside(path)
  })

const makeRead = (resolve: Resolve, fs: FileSystem.FileSystem) =>
  Effect.fnUntraced(function*(path: string) {
    const real = yield* resolve(path)
    const info = yield* Effect.mapError(fs.stat(real), problem(path))
    if (info.type !== "File") {
      const detail = info.type === "Directory" ? "it is a folder" : "it is no file"
      return yield* new FileProblem({ reason: "wrong_kind", path, detail })
    }
    if (Number(info.size) > maxBytes) {
      return yield* new FileProblem({ reason: "too_large", path, detail: `it is larger than ${maxBytes} bytes` })
    }
    const bytes = yield* Effect.mapError(fs.readFile(real), problem(path))
    return yield* Effect.fromResult(decodeText(path, bytes))
  })

const byPath = (left: string, right: string): number => left < right ? -1 : left > right ? 1 : 0

/** Breadth first, so that a bound cuts off what lies deepest. Links are left out: what they lead to is listed where it is. */
const makeList = (resolve: Resolve, root: string, fs: FileSystem.FileSystem, system: Path.Path) =>
  Effect.fnUntraced(function*(path: string) {
    const start = yield* resolve(path)
    const named = system.relative(root, start).replaceAll(system.sep, "/")
    const info = yield* Effect.mapError(fs.stat(start), problem(path))
    if (info.type !== "Directory") return { paths: [named], isCut: false, problems: [] }
    const paths: Array<string> = []
    const problems: Array<FileProblem> = []
    let level = [named]
    while (level.length > 0 && paths.length < maxFiles) {
      const next: Array<string> = []
      const read = yield* Effect.forEach(
        level,
        (folder) =>
          Effect.result(Effect.mapError(fs.readDirectoryEntries(system.join(root, folder)), problem(folder || "."))),
        { concurrency: 8 }
      )
      for (const [index, entries] of read.entries()) {
        if (Result.isFailure(entries)) {
          problems.push(entries.failure)
          continue
        }
        for (const entry of entries.success) {
          const child = `${level[index] === "" ? "" : `${level[index]}/`}${entry.name}`
          if (entry.type === "Directory" && !skippedFolders.has(entry.name)) next.push(child)
          if (entry.type === "File" && !skippedFiles.test(entry.name)) paths.push(child)
        }
      }
      level = next
    }
    const isCut = paths.length > maxFiles || level.length > 0
    return { paths: paths.slice(0, maxFiles).sort(byPath), isCut, problems }
  })

/**
 * The workspace of a folder. It fails when the folder is missing, is no folder or cannot be read. Notes are written only
 * where the user says, relative to the folder; without a place for them they are planned and not written.
 */
export const layer = (options: {
  readonly folder: string
  readonly notes: Option.Option<string>
}): Layer.Layer<Workspace, FileProblem, FileSystem.FileSystem | Path.Path> =>
  Layer.effect(
    Workspace,
    Effect.gen(function*() {
      const fs = yield* FileSystem.FileSystem
      const system = yield* Path.Path
      const failed = problem(options.folder)
      const root = yield* Effect.mapError(fs.realPath(system.resolve(options.folder)), failed)
      const info = yield* Effect.mapError(fs.stat(root), failed)
      if (info.type !== "Directory") {
        return yield* new FileProblem({ reason: "wrong_kind", path: options.folder, detail: "it is no folder" })
      }
      yield* Effect.mapError(fs.readDirectory(root), failed)
      const resolve = makeResolve(root, fs, system)
      const notes = Option.filter(options.notes, (folder) => folder.trim() !== "").pipe(
        Option.map((folder) => ({ root, folder: system.resolve(root, folder), fs, system }))
      )
      return Workspace.of({
        root,
        list: makeList(resolve, root, fs, system),
        read: makeRead(resolve, fs),
        note: Option.match(notes, { onNone: () => Notes.plan, onSome: Notes.make }),
        noted: Option.match(notes, { onNone: () => Notes.plan, onSome: Notes.find })
      })
    })
  )
