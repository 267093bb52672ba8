/**
 * The Postgres server of a test run: a folder for it, which the first test that needs it starts it in, and its end.
 */
import { announce, makeFolder, remove } from "./postgresServer.ts"

export default (): () => Promise<void> => {
  const folder = makeFolder()
  announce(folder)
  return () => remove(folder)
}
