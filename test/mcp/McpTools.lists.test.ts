/**
 * What a client keeps of tools over many lists: what each was when it was first seen, and the name that it has. Two
 * servers list the same two names, in any order of lists.
 */
import { describe } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import { Message, ToolRunner } from "heddle"
import { McpTools } from "heddle/mcp"
import * as Servers from "../../src/mcp/internal/servers.ts"
import { oneOf } from "../support/dimensions/dimension.ts"
import { property } from "../support/property.ts"
import { Fake, said } from "./support/fake.ts"
import { ledger } from "./support/ledger.ts"

ledger()

/** The versions of a tool in one list: none where it is absent, and two where the list has its name twice. */
const versions = oneOf<ReadonlyArray<number>>([], [], [1], [1], [1], [2], [2], [3], [1, 2], [2, 1])

const steps = Arbitrary.all({
  server: oneOf(0, 0, 1),
  a: versions,
  b: versions,
  by: oneOf("a change", "a change", "a lost connection")
})

const approvals = {
  none: { approval: "none" },
  destructive: { approval: "destructive", trust: "annotations" },
  "a function": { trust: "annotations" }
} satisfies Record<string, McpTools.Options>

const lists = Arbitrary.all({
  first: Arbitrary.all({ a: versions, b: versions }),
  other: Arbitrary.all({ a: versions, b: versions }),
  steps: Arbitrary.array(steps, { minLength: 1, maxLength: 8 }),
  approval: oneOf<keyof typeof approvals>("none", "destructive", "a function")
})

type Given = Readonly<Record<"a" | "b", ReadonlyArray<number>>>

const own = ["a", "b"] as const

const definitionsOf = (given: Given) =>
  own.flatMap((name) =>
    given[name].map((version) => ({ name, description: String(version), annotations: { readOnlyHint: true } }))
  )

const servers = ["shop", "zoo"] as const

/** A tool that was offered, with what is known of it at its server. */
interface Offered {
  readonly server: number
  readonly own: "a" | "b"
  readonly version: number
  readonly tool: McpTools.McpTool
}

describe("lists of tools", () => {
  property(
    "O-52, W-14: a tool keeps its first seen definition and, while it is listed, its name",
    lists,
    ({ approval, first, other, steps }) => {
      const problems: Array<string> = []
      const facts = new Map<string, McpTools.Facts>()
      const options: McpTools.Options = {
        ...approvals[approval],
        ...(approval === "a function"
          ? { approval: (fact) => (facts.set(`${fact.server} ${fact.name}`, fact), fact.isChanged) }
          : {})
      }
      const now: Array<Given> = [first, other]
      const fakes = now.map((given) => new Fake(definitionsOf(given)))
      for (const [server, fake] of fakes.entries()) {
        fake.answering = ({ tool }) => Effect.succeed(said(`${servers[server]} ${tool.name} was called`))
      }
      const seen = servers.map(() => new Map<string, number>())
      let before: ReadonlyArray<Offered> = []

      const versionOf = (server: number, name: "a" | "b") => now[server]![name][0]

      const run = ({ tool }: Pick<Offered, "tool">, isApproved: boolean) =>
        Effect.map(
          ToolRunner.run([Message.toolCall("c0", tool.name, {})], [tool], isApproved ? { approved: ["c0"] } : {}),
          ({ messages, suspensions }) => suspensions?.[0]?.kind ?? String(messages[0]?.content)
        )

      const callOf = ({ own, server, version }: Offered): string => {
        const current = versionOf(server, own)
        return current === version
          ? `${servers[server]} ${own} was called`
          : current === undefined
          ? "the server has no tool "
          : "the tool has changed since"
      }

      const check = (place: string) =>
        Effect.gen(function*() {
          for (const [server, given] of now.entries()) {
            for (const name of own) {
              const [version] = given[name]
              if (version !== undefined && !seen[server]!.has(name)) seen[server]!.set(name, version)
            }
          }
          const expect = (what: string, is: unknown, right: unknown) => {
            if (is !== right) problems.push(`${place}: ${what} is ${String(is)} in place of ${String(right)}`)
          }
          const tools = yield* McpTools.tools
          const offered = tools.map((tool): Offered => {
            const { name, server } = tool.metadata!["mcp"] as { readonly name: "a" | "b"; readonly server: string }
            const index = servers.indexOf(server as (typeof servers)[number])
            return { server: index, own: name, version: Number(tool.description), tool }
          })
          const wordsOf = ({ own, server }: Offered) => `${servers[server]} ${own}`
          const listed = servers.flatMap((_, server) =>
            own.flatMap((name) => versionOf(server, name) === undefined ? [] : [`${servers[server]} ${name}`])
          )
          expect("the list", offered.map(wordsOf).sort().join(), listed.sort().join())
          expect("the number of names", new Set(tools.map(({ name }) => name)).size, listed.length)
          for (const each of offered) {
            const { own, server, tool, version } = each
            const words = wordsOf(each)
            expect(`the version of ${words}`, version, versionOf(server, own))
            const isChanged = version !== seen[server]!.get(own)
            // Each tool says that it changes nothing, which a changed one is not trusted to say.
            expect(`what is asked of ${words}`, yield* run(each, false), isChanged ? "approval" : callOf(each))
            expect(`the approved call of ${words}`, yield* run(each, true), callOf(each))
            expect(`readOnly of ${words}`, tool.readOnly, approval !== "none" && !isChanged)
            if (approval === "a function") {
              expect(`isChanged of ${words}`, facts.get(words)?.isChanged, isChanged)
              expect(`isTrusted of ${words}`, facts.get(words)?.isTrusted, !isChanged)
            }
            const earlier = before.find((one) => one.server === server && one.own === own)?.tool.name
            const isShortTaken = tools.some((one) => one.name === own && one !== tool)
            if (earlier !== undefined || !isShortTaken) expect(`the name of ${words}`, tool.name, earlier ?? own)
          }
          // A run that began before the list changed has the tools of then.
          for (const each of before) {
            const content = yield* run(each, true)
            if (!content.includes(callOf(each))) problems.push(`${place}: the earlier ${wordsOf(each)}: ${content}`)
          }
          before = offered
        })

      return Effect.gen(function*() {
        yield* check("at first")
        for (const [index, { by, server, ...given }] of steps.entries()) {
          const fake = fakes[server]!
          // The next call opens a connection that is lost.
          const caller = before.find((each) => each.server === server)
          now[server] = given
          if (by === "a change" || caller === undefined) fake.change(definitionsOf(given))
          else {
            fake.tools = definitionsOf(given)
            yield* Effect.exit(fake.lose)
            const content = yield* run(caller, true)
            if (!content.includes(callOf(caller))) problems.push(`step ${index}: the call that opens: ${content}`)
          }
          yield* check(`step ${index}`)
        }
        return problems
      }).pipe(Effect.provide([
        Layer.merge(
          Servers.layerOf(servers[0], fakes[0]!.connect, options),
          Servers.layerOf(servers[1], fakes[1]!.connect, options)
        ),
        Logger.layer([])
      ]))
    },
    300
  )
})
