/** Parts of Node needed to kill processes. They are looked up at run time, so the test kit loads in any runtime. */

/** Used part of `node:fs`. */
export interface FileSystem {
  readonly closeSync: (file: number) => void
  readonly existsSync: (path: string) => boolean
  readonly mkdtempSync: (prefix: string) => string
  readonly openSync: (path: string, flags: string) => number
  readonly readFileSync: (path: string, encoding: "utf8") => string
  readonly rmSync: (path: string, options: { readonly recursive: boolean; readonly force: boolean }) => void
  readonly writeSync: (file: number, text: string) => number
}

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

/** This code's process. Undefined in other runtimes. */
export const process: Process | undefined = (globalThis as { readonly process?: Process }).process

const here = (): Process => {
  if (process?.getBuiltinModule === undefined) throw new Error("everyKill: processes need Node 22.13 or later")
  return process
}

export const fileSystem = (): FileSystem => here().getBuiltinModule("node:fs") as FileSystem

/** Starts a Node process, by default with this process's binary. */
export const spawn = (node: string | undefined, args: ReadonlyArray<string>, options: SpawnOptions): Child => {
  const { execPath, getBuiltinModule } = here()
  const { spawn } = getBuiltinModule("node:child_process") as {
    readonly spawn: (file: string, args: ReadonlyArray<string>, options: SpawnOptions) => Child
  }
  return spawn(node ?? execPath, args, options)
}

/** Returns the folder for temporary files. */
export const temporaryFolder = (): string =>
  (here().getBuiltinModule("node:os") as { readonly tmpdir: () => string }).tmpdir()
