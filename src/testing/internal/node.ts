/**
 * The parts of Node that killing and being killed needs. They are looked up at run time, so that the test kit loads in
 * any runtime.
 */

/** The part of `node:fs`. */
export interface FileSystem {
  readonly closeSync: (file: number) => void
  readonly existsSync: (path: string) => boolean
  readonly mkdtempSync: (prefix: string) => string
  readonly openSync: (path: string, flags: string) => number
  readonly readFileSync: (path: string, encoding: "utf8") => string
  readonly rmSync: (path: string, options: { readonly recursive: boolean; readonly force: boolean }) => void
  readonly writeSync: (file: number, text: string) => number
}

/** A process that was started. */
export interface Child {
  readonly stderr: { readonly setEncoding: (encoding: "utf8") => unknown; readonly on: Listen<[text: string]> }
  readonly kill: (signal: "SIGKILL") => boolean
  readonly on: Listen<[error: Error], "error"> & Listen<[code: number | null, signal: string | null], "close">
}

type Listen<Args extends ReadonlyArray<unknown>, Event extends string = "data"> = (
  event: Event,
  listener: (...args: Args) => void
) => unknown

interface SpawnOptions {
  readonly env: Readonly<Record<string, string | undefined>>
  readonly stdio: ReadonlyArray<"ignore" | "pipe">
}

interface Process {
  readonly env: Readonly<Record<string, string | undefined>>
  readonly execPath: string
  readonly pid: number
  readonly hrtime: { readonly bigint: () => bigint }
  readonly kill: (pid: number, signal: "SIGKILL") => unknown
  readonly getBuiltinModule: (name: string) => unknown
}

/** The process that this code runs in. Absent where the runtime is another one. */
export const process: Process | undefined = (globalThis as { readonly process?: Process }).process

const here = (): Process => {
  if (process?.getBuiltinModule === undefined) throw new Error("everyKill: processes need Node 22.13 or later")
  return process
}

/** Node's file system. */
export const fileSystem = (): FileSystem => here().getBuiltinModule("node:fs") as FileSystem

/** Starts a process of a Node, which is this one by default. */
export const spawn = (node: string | undefined, args: ReadonlyArray<string>, options: SpawnOptions): Child => {
  const { execPath, getBuiltinModule } = here()
  const { spawn } = getBuiltinModule("node:child_process") as {
    readonly spawn: (file: string, args: ReadonlyArray<string>, options: SpawnOptions) => Child
  }
  return spawn(node ?? execPath, args, options)
}

/** The folder for temporary files. */
export const temporaryFolder = (): string =>
  (here().getBuiltinModule("node:os") as { readonly tmpdir: () => string }).tmpdir()
