/** A Postgres server for the programs that are killed, which is removed with all of their databases. */
import * as Servers from "../../test/support/postgresServer.ts"

/** Runs with the address of a new server. */
export const withServer = async (run: (address: string) => Promise<void>): Promise<void> => {
  await Servers.reap()
  const folder = Servers.makeFolder()
  try {
    await Servers.initialise(folder)
    await run(`postgres://postgres@127.0.0.1:${await Servers.start(folder)}`)
  } finally {
    await Servers.remove(folder)
  }
}
