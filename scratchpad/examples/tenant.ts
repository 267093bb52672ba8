/**
 * The monthly amount of a tenant, in a database that any number of processes share. Each of them asks a model until the
 * amount is spent, and with `die` it is killed while the model answers. Money is in millionths of a dollar.
 */
import * as DateTime from "effect/DateTime"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as SqlClient from "effect/sql/SqlClient"
import * as Stream from "effect/Stream"
import { Adapter, Budget, Chat, Pricing } from "heddle"
import { SqliteClient } from "heddle/sql"
import { Script } from "heddle/testing"
import { tmpdir } from "node:os"

const [command, filename = `${tmpdir()}/heddle-tenant.db`] = process.argv.slice(2)

const accountOf = (tenant: string, amount: number, sql: SqlClient.SqlClient): Budget.Budget =>
  Budget.from({
    reserve: ({ amount: { money }, id }) =>
      Effect.gen(function*() {
        if (money === 0) return false // a model without a price
        const account = `${tenant} ${DateTime.formatIso(yield* DateTime.now).slice(0, 7)}`
        yield* sql`INSERT INTO accounts VALUES (${account}, ${amount}, 0) ON CONFLICT DO NOTHING`
        const granted = yield* sql`UPDATE accounts SET spent = spent + ${money}
          WHERE account = ${account} AND spent + ${money} <= amount RETURNING account`
        if (granted.length > 0) yield* sql`INSERT INTO reserved VALUES (${id}, ${account}, ${money})`
        return granted.length > 0
      }).pipe(sql.withTransaction, Effect.orDie),
    settle: ({ amount: { money }, id }, spent) =>
      sql`UPDATE accounts SET spent = spent + ${spent.money - money}
        WHERE account = (SELECT account FROM reserved WHERE id = ${id})`.pipe(
        Effect.andThen(sql`DELETE FROM reserved WHERE id = ${id}`),
        sql.withTransaction,
        Effect.orDie
      )
  })

const reply = [Script.usage({ inputTokens: 5, outputTokens: 60 }), Script.text("Yes."), Script.finish("stop")]
const die: Adapter.Service["stream"] = () => Stream.sync(() => process.kill(process.pid, "SIGKILL")).pipe(Stream.drain)
const named = { provider: "acme", model: "loom" }
const loom = Adapter.map(({ stream }) => ({ ...named, stream: command === "die" ? die : stream }))
const model = Layer.provide(loom, Script.layer([reply]))
const prices = Pricing.layer({ acme: { models: { loom: { cost: { input: 1, output: 10 } } } } })

const program = Effect.gen(function*() {
  const sql = yield* SqlClient.SqlClient
  yield* sql`CREATE TABLE IF NOT EXISTS accounts (account TEXT PRIMARY KEY, amount BIGINT, spent BIGINT)`
  yield* sql`CREATE TABLE IF NOT EXISTS reserved (id TEXT PRIMARY KEY, account TEXT, money BIGINT)`
  const options = { budget: accountOf("ann", 200_000, sql), maxTokens: 100 }
  while (true) {
    const { haltedReason, spent } = yield* Effect.provide(Chat.run("Is it warm?", options), model)
    if (haltedReason === "budget") break
    console.log(`an answer for ${spent?.money}`)
  }
  console.log(JSON.stringify(yield* sql`SELECT *, (SELECT sum(money) FROM reserved) AS reserved FROM accounts`))
})

await Effect.runPromise(Effect.provide(program, [prices, SqliteClient.layer({ filename })]))
