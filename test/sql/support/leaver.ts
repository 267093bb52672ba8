/**
 * A program that starts a Postgres server, says where it is, and is killed.
 */
import * as fs from "node:fs"
import * as path from "node:path"
import { initialise, makeFolder, start } from "../../support/postgresServer.ts"

const folder = makeFolder()
await initialise(folder)
await start(folder)
const pid = Number(fs.readFileSync(path.join(folder, "data", "postmaster.pid"), "utf8").split("\n")[0])
process.send?.([folder, pid], () => process.kill(process.pid, "SIGKILL"))
