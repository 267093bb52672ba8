/** The real client of the AI SDK beside the server: a page that is loaded again at any moment shows everything once. */
import { Chat } from "@ai-sdk/react"
import { assert, describe, it } from "@effect/vitest"
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import { Tool } from "heddle"
import { Agent } from "heddle/server"
import { Script } from "heddle/testing"
import { serve, type Site } from "./support/site.ts"

const { finish, text, toolCall } = Script

const at = "/agents/helper/sessions"

/** A page that was just loaded, with the messages that the server has. */
const load = async (site: Site) => {
  const { messages } = JSON.parse((await site.ask("GET", `${at}/s1`)).text)
  return new Chat<any>({
    id: "s1",
    messages,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    transport: new DefaultChatTransport({ api: site.url + at })
  })
}

/** What a page shows: the parts of the messages, without what comes and goes. */
const shown = ({ messages }: Chat<any>) =>
  messages.map(({ parts, role }) => [
    role,
    ...parts.flatMap((part: any) =>
      part.type === "text"
        ? [part.text]
        : part.type === "dynamic-tool"
        ? [`${part.toolCallId}: ${part.state}`]
        : []
    )
  ])

const settled = async (chat: Chat<any>) => {
  await Promise.resolve()
  while (chat.status === "streaming" || chat.status === "submitted") {
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.isUndefined(chat.error)
}

/** Waits until a page that resumes a run has its stream: a run that has ended by then has none. */
const streaming = async (chat: Chat<any>) => {
  while (chat.status !== "streaming") await new Promise((resolve) => setImmediate(resolve))
}

const gated = (name: string, approval = false) => {
  const began = Deferred.makeUnsafe<void>()
  const gate = Deferred.makeUnsafe<void>()
  const tool = Tool.make(name, {
    parameters: {},
    approval,
    handler: () => Effect.as(Effect.andThen(Deferred.succeed(began, undefined), Deferred.await(gate)), "done")
  })
  return { began, gate, tool }
}

const helper = (tools: ReadonlyArray<Tool.Any>) =>
  Agent.make({ name: "helper", description: "Helps", run: () => ({ tools }) })

describe("a loaded AI SDK page", () => {
  it.live("W-04: a page loaded while an approved call runs shows the call as running, and every part once", () =>
    Effect.gen(function*() {
      const { began, gate, tool } = gated("refund", true)
      const site = yield* serve(
        [helper([tool])],
        Script.layer([
          [text("I look."), toolCall("c1", "refund"), finish("tool_calls")],
          [text("Refunded."), finish("stop")]
        ])
      )
      const first = yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages`, { content: "Refund", id: "u1" }))
      assert.strictEqual(first.status, 200)
      const page = yield* Effect.promise(() => load(site))
      assert.deepStrictEqual(shown(page), [["user", "Refund"], ["assistant", "I look.", "c1: approval-requested"]])
      const [, waiting] = page.messages
      const { approval } = waiting!.parts.find(({ type }: any) => type === "dynamic-tool") as any
      yield* Effect.promise(async () => void page.addToolApprovalResponse({ id: approval.id, approved: true }))
      yield* Deferred.await(began)
      const seen = JSON.parse((yield* Effect.promise(() => site.ask("GET", `${at}/s1`))).text)
      assert.notInclude(JSON.stringify(seen), "unknown_effect")
      const again = yield* Effect.promise(() => load(site))
      const resuming = again.resumeStream()
      yield* Effect.promise(() => streaming(again))
      yield* Deferred.succeed(gate, undefined)
      yield* Effect.promise(() => resuming)
      yield* Effect.promise(() => settled(again))
      const whole = [["user", "Refund"], ["assistant", "I look.", "c1: output-available", "Refunded."]]
      assert.deepStrictEqual(shown(again), whole)
      yield* Effect.promise(() => settled(page))
      assert.deepStrictEqual(shown(page), whole)
      assert.deepStrictEqual(shown(yield* Effect.promise(() => load(site))), whole)
      assert.strictEqual(again.messages[1]?.id, page.messages[1]?.id)
    }))

  it.live("W-04: a page loaded in the second step of a run shows the first step once", () =>
    Effect.gen(function*() {
      const { began, gate, tool } = gated("look")
      const quick = Tool.make("quick", { parameters: {}, handler: () => Effect.succeed("ok") })
      const site = yield* serve(
        [helper([tool, quick])],
        Script.layer([
          [text("First."), toolCall("c1", "quick"), finish("tool_calls")],
          [text("Second."), toolCall("c2", "look"), finish("tool_calls")],
          [text("Third."), finish("stop")]
        ])
      )
      yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages?wait=false`, { content: "Go", id: "u1" }))
      yield* Deferred.await(began)
      const page = yield* Effect.promise(() => load(site))
      assert.deepStrictEqual(shown(page), [["user", "Go"]])
      assert.strictEqual(page.messages[0]?.id, "u1")
      const resuming = page.resumeStream()
      yield* Effect.promise(() => streaming(page))
      yield* Deferred.succeed(gate, undefined)
      yield* Effect.promise(() => resuming)
      yield* Effect.promise(() => settled(page))
      const whole = [["user", "Go"], [
        "assistant",
        "First.",
        "c1: output-available",
        "Second.",
        "c2: output-available",
        "Third."
      ]]
      assert.deepStrictEqual(shown(page), whole)
      assert.deepStrictEqual(shown(yield* Effect.promise(() => load(site))), whole)
    }))

  it.live("W-04: a denied call is denied on the live page and on the loaded page", () =>
    Effect.gen(function*() {
      const { tool } = gated("refund", true)
      const site = yield* serve(
        [helper([tool])],
        Script.layer([
          [toolCall("c1", "refund"), finish("tool_calls")],
          [text("Well."), finish("stop")]
        ])
      )
      yield* Effect.promise(() => site.ask("POST", `${at}/s1/messages`, { content: "Refund", id: "u1" }))
      const page = yield* Effect.promise(() => load(site))
      const { approval } = page.messages[1]!.parts.find(({ type }: any) => type === "dynamic-tool") as any
      yield* Effect.promise(async () => {
        await page.addToolApprovalResponse({ id: approval.id, approved: false })
        await settled(page)
      })
      const whole = [["user", "Refund"], ["assistant", "c1: output-denied", "Well."]]
      assert.deepStrictEqual(shown(page), whole)
      assert.deepStrictEqual(shown(yield* Effect.promise(() => load(site))), whole)
    }))
})
