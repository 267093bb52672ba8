/** Starts a server of Node, and tells the process that has started this one its address, and what it has used. */
import type { Server } from "node:http"

/** Answers each message of the parent with the time of the processor and the memory so far. */
export const listen = (server: Server): void => {
  process.on("message", () => {
    const { system, user } = process.cpuUsage()
    process.send?.({ cpu: (system + user) / 1_000, memory: process.memoryUsage.rss() })
  })
  server.listen(0, "127.0.0.1", () => {
    const address = server.address()
    const port = typeof address === "object" && address !== null ? address.port : 0
    process.send?.({ url: `http://127.0.0.1:${port}/` })
  })
}
