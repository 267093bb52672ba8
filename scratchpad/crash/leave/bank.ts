/**
 * A bank as a process of its own, over HTTP. A charge takes its time, and happens whatever becomes of the process that asked
 * for it. The bank finds a charge only when it is done, and never recognises one that it has: a second charge under the same
 * key is a second charge. It prints its port when it listens.
 */
import { createServer, type IncomingMessage } from "node:http"
import type { AddressInfo } from "node:net"

/** A charge in the ledger. Times are milliseconds since 1970. */
export interface Charge {
  readonly key: string
  readonly amount: number
  /** The process that asked for it. */
  readonly pid: number
  readonly begun: number
  /** Left out while the charge is under way. */
  done?: number
}

/** A question for a charge. */
export interface LookUp {
  readonly key: string
  readonly pid: number
  readonly at: number
  readonly isFound: boolean
}

/** All that the bank was asked for. */
export interface Ledger {
  readonly charges: ReadonlyArray<Charge>
  readonly lookUps: ReadonlyArray<LookUp>
}

/** Milliseconds that a charge takes, or `"held"`: until a request ends it. */
const time = process.argv[2] ?? "2000"

const charges: Array<Charge> = []
const lookUps: Array<LookUp> = []
const held: Array<() => void> = []

const bodyOf = async (request: IncomingMessage): Promise<any> => {
  let text = ""
  for await (const part of request.setEncoding("utf8")) text += part
  return JSON.parse(text)
}

const charged = async (request: IncomingMessage): Promise<unknown> => {
  const charge: Charge = { ...await bodyOf(request), begun: Date.now() }
  charges.push(charge)
  await new Promise<void>((resolve) => {
    if (time === "held") held.push(resolve)
    else setTimeout(resolve, Number(time))
  })
  charge.done = Date.now()
  return { receipt: `charged ${charge.amount}` }
}

const answers: Readonly<Record<string, (request: IncomingMessage) => Promise<unknown>>> = {
  "/charge": charged,
  "/lookUp": async (request) => {
    const asked = await bodyOf(request)
    const isFound = charges.some(({ done, key }) => key === asked.key && done !== undefined)
    lookUps.push({ ...asked, at: Date.now(), isFound })
    return { isFound }
  },
  "/ledger": async () => ({ charges, lookUps }),
  "/end": async () => {
    for (const end of held.splice(0)) end()
    return {}
  }
}

const server = createServer((request, response) => {
  const answer = answers[request.url ?? ""]
  void (answer === undefined ? Promise.resolve(undefined) : answer(request)).then((value) => {
    response.writeHead(value === undefined ? 404 : 200, { "content-type": "application/json" })
    response.end(JSON.stringify(value ?? {}))
  }, () => response.destroy())
})

server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port))
process.stdin.on("end", () => process.exit(0)).resume()
