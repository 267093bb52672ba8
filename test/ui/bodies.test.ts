/** Bodies as browsers and as attackers post them, read by both protocols. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import type { Message } from "heddle"
import { AgUi, type Body, UiStream } from "heddle/ui"

const canary = "canary-7f3a"

const uiUser = (parts: unknown, more: object = {}) => ({
  id: "s1",
  trigger: "submit-message",
  messages: [{ id: "m1", role: "user", parts }],
  ...more
})

const uiAssistant = (parts: ReadonlyArray<unknown>, more: object = {}) => ({
  id: "s1",
  trigger: "submit-message",
  messageId: "a1",
  messages: [{ id: "m1", role: "user", parts: [] }, { id: "a1", role: "assistant", parts }],
  ...more
})

const agUser = (content: unknown, more: object = {}) => ({
  threadId: "s1",
  runId: "r1",
  messages: [{ id: "m1", role: "user", content }],
  ...more
})

const agResume = (entries: unknown) => ({ threadId: "s1", runId: "r2", messages: [], resume: entries })

const text = [{ type: "text", text: "Hi" }]
const file = (url: string, mediaType: unknown = "image/png") => ({ type: "file", url, mediaType })
const png = "data:image/png;base64,iVBORw0KGgo="

const nested = (levels: number): unknown => JSON.parse(`${"[".repeat(levels)}${"]".repeat(levels)}`)

/** The kind of the error and its field, or the actions. */
const told = (read: Result.Result<Body.Posted, Body.BodyError>) =>
  Result.isFailure(read) ? [read.failure.reason, read.failure.field] : read.success.actions

const mebibyte = 1_048_576

/** Each hostile body, and the kind and the field of its error. */
const hostile: ReadonlyArray<
  readonly [name: string, read: () => ReturnType<typeof UiStream.read>, reason: string, field: string]
> = [
  ...([undefined, null, 1, canary, [], true] as const).flatMap((body) => [
    [
      `${String(body)} as a body`,
      () => UiStream.read(body),
      "invalid_body",
      Array.isArray(body) ? "body" : "body"
    ] as const,
    [`${String(body)} as an input`, () => AgUi.read(body), "invalid_body", "body"] as const
  ]),
  ...(["", "..", ".", "a/b", "a b", "a%2e", "é", "x".repeat(129), `${canary}\n`, 5, null, ["s1"], {
    toString: 1
  }] as const)
    .flatMap((id) => [
      [`the session ${JSON.stringify(id)}`, () => UiStream.read(uiUser(text, { id })), "invalid_body", "id"] as const,
      [
        `the thread ${JSON.stringify(id)}`,
        () => AgUi.read(agUser("Hi", { threadId: id })),
        "invalid_body",
        "threadId"
      ] as const
    ]),
  ["no messages", () => UiStream.read({ id: "s1", messages: [] }), "invalid_body", "messages"],
  ["messages that are no list", () => UiStream.read({ id: "s1", messages: canary }), "invalid_body", "messages"],
  ["a message that is none", () => UiStream.read({ id: "s1", messages: [canary] }), "invalid_body", "messages[0]"],
  [
    "a message without an id",
    () => UiStream.read({ id: "s1", messages: [{ role: "user", parts: text }] }),
    "invalid_body",
    "messages[0].id"
  ],
  ...["system", "developer", "tool", canary, 7].map((role) =>
    [
      `the role ${role}`,
      () => UiStream.read({ id: "s1", messages: [{ id: "m", role, parts: text }] }),
      "invalid_body",
      "messages[0].role"
    ] as const
  ),
  [
    "a regeneration without a message of the user",
    () => UiStream.read(uiAssistant([], { trigger: "regenerate-message" })),
    "invalid_body",
    "messages[1].role"
  ],
  ["an unknown trigger", () => UiStream.read(uiUser(text, { trigger: canary })), "invalid_body", "trigger"],
  ["an earlier message", () => UiStream.read(uiUser(text, { messageId: "m0" })), "unsupported", "messageId"],
  ["no parts", () => UiStream.read(uiUser([])), "invalid_body", "messages[0].parts"],
  ["parts that are none", () => UiStream.read(uiUser(canary)), "invalid_body", "messages[0].parts"],
  ["a part that is none", () => UiStream.read(uiUser([canary])), "invalid_body", "messages[0].parts[0]"],
  [
    "a text that is none",
    () => UiStream.read(uiUser([{ type: "text", text: { canary } }])),
    "invalid_body",
    "messages[0].parts[0].text"
  ],
  [
    "a file by address",
    () => UiStream.read(uiUser([file(`https://${canary}/a.png`)])),
    "invalid_body",
    "messages[0].parts[0].url"
  ],
  [
    "a file of the disk",
    () => UiStream.read(uiUser([file("file:///etc/passwd")]), { allowUrl: () => true }),
    "invalid_body",
    "messages[0].parts[0].url"
  ],
  [
    "a script as a file",
    () => UiStream.read(uiUser([file("javascript:alert(1)")]), { allowUrl: () => true }),
    "invalid_body",
    "messages[0].parts[0].url"
  ],
  [
    "a file that is no base64",
    () => UiStream.read(uiUser([file("data:image/png;base64,<script>")])),
    "invalid_body",
    "messages[0].parts[0].url"
  ],
  [
    "a file in percent escapes",
    () => UiStream.read(uiUser([file("data:text/plain,hello")])),
    "invalid_body",
    "messages[0].parts[0].url"
  ],
  [
    "a media type with a line break",
    () => UiStream.read(uiUser([file(png, `image/png\r\n${canary}`)])),
    "invalid_body",
    "messages[0].parts[0].url (media type)"
  ],
  [
    "65 files",
    () => UiStream.read(uiUser(Array.from({ length: 65 }, () => file(png)))),
    "too_large",
    "messages[0].parts[64].url"
  ],
  [
    "a file of more than 8 MiB",
    () => UiStream.read(uiUser([file(`data:image/png;base64,${"A".repeat(12 * mebibyte)}`)])),
    "too_large",
    "messages[0].parts[0].url"
  ],
  [
    "a text of more than 1 MiB",
    () => UiStream.read(uiUser([{ type: "text", text: "x".repeat(mebibyte + 1) }])),
    "too_large",
    "messages[0].parts[0].text"
  ],
  [
    "a text of as many characters, and more bytes",
    () => UiStream.read(uiUser([{ type: "text", text: "é".repeat(mebibyte * 0.6) }])),
    "too_large",
    "messages[0].parts[0].text"
  ],
  [
    "texts that are too long together",
    () => UiStream.read(uiUser([text[0], { type: "text", text: "x".repeat(mebibyte - 1) }])),
    "too_large",
    "messages[0].parts[1].text"
  ],
  [
    "parts of an answer that are none",
    () => UiStream.read(uiAssistant(7 as never)),
    "invalid_body",
    "messages[1].parts"
  ],
  [
    "an approval without an id",
    () =>
      UiStream.read(uiAssistant([{ type: "dynamic-tool", state: "approval-responded", approval: { approved: true } }])),
    "invalid_body",
    "messages[1].parts[0].approval.id"
  ],
  [
    "an approval that is no decision",
    () =>
      UiStream.read(uiAssistant([
        { type: "dynamic-tool", state: "approval-responded", approval: { id: "r~p", approved: "true" } }
      ])),
    "invalid_body",
    "messages[1].parts[0].approval.approved"
  ],
  [
    "an approval of another call than its part shows",
    () =>
      UiStream.read(uiAssistant([
        { type: "dynamic-tool", toolCallId: "p", state: "approval-responded", approval: { id: "r~q", approved: true } }
      ], { edits: { p: { amount: 2 } } })),
    "invalid_body",
    "messages[1].parts[0].approval.id"
  ],
  [
    "edits that are none",
    () =>
      UiStream.read(uiAssistant([
        { type: "dynamic-tool", toolCallId: "p", state: "approval-responded", approval: { id: "r~p", approved: true } }
      ], { edits: { p: canary } })),
    "invalid_body",
    "edits"
  ],
  [
    "edits that nest without end",
    () =>
      UiStream.read(uiAssistant([
        { type: "dynamic-tool", toolCallId: "p", state: "approval-responded", approval: { id: "r~p", approved: true } }
      ], { edits: { p: { deep: nested(5000) } } })),
    "invalid_body",
    "edits"
  ],
  ["a run without an id", () => AgUi.read(agUser("Hi", { runId: "" })), "invalid_body", "runId"],
  [
    "a sound",
    () => AgUi.read(agUser([{ type: "audio", source: { type: "data", value: "", mimeType: "audio/wav" } }])),
    "unsupported",
    "messages[0].content[0].type"
  ],
  [
    "a file of the provider",
    () => AgUi.read(agUser([{ type: "image", source: { type: "file", value: canary } }])),
    "unsupported",
    "messages[0].content[0].source.type"
  ],
  [
    "an image by address",
    () => AgUi.read(agUser([{ type: "image", source: { type: "url", value: `https://${canary}` } }])),
    "invalid_body",
    "messages[0].content[0].source.value"
  ],
  ["an entry that is none", () => AgUi.read(agResume([canary])), "invalid_body", "resume[0]"],
  ["entries that are no list", () => AgUi.read(agResume({ 0: 1 })), "invalid_body", "resume"],
  [
    "an entry without an interrupt",
    () => AgUi.read(agResume([{ status: "resolved" }])),
    "invalid_body",
    "resume[0].interruptId"
  ],
  [
    "an unknown status",
    () => AgUi.read(agResume([{ interruptId: "i", status: canary }])),
    "invalid_body",
    "resume[0].status"
  ],
  [
    "a reason that is no text",
    () =>
      AgUi.read(agResume([{ interruptId: "i", status: "resolved", payload: { approved: false, reason: { canary } } }])),
    "invalid_body",
    "resume[0].payload.reason"
  ],
  [
    "an answer that nests without end",
    () => AgUi.read(agResume([{ interruptId: "i", status: "resolved", payload: nested(5000) }])),
    "invalid_body",
    "resume[0].payload"
  ],
  [
    "an answer of more than 1 MiB",
    () => AgUi.read(agResume([{ interruptId: "i", status: "resolved", payload: "x".repeat(mebibyte) }])),
    "too_large",
    "resume[0].payload"
  ],
  [
    "33 tools",
    () =>
      AgUi.read(agUser("Hi", {
        tools: Array.from({ length: 33 }, (_, index) => ({ name: `t${index}`, description: "", parameters: {} }))
      })),
    "too_large",
    "tools"
  ],
  [
    "a tool of more than 16 KiB",
    () => AgUi.read(agUser("Hi", { tools: [{ name: "t", description: "x".repeat(16_385), parameters: {} }] })),
    "too_large",
    "tools[0]"
  ],
  [
    "a tool with a name that breaks out",
    () => AgUi.read(agUser("Hi", { tools: [{ name: `${canary}"}`, description: "" }] })),
    "invalid_body",
    "tools[0].name"
  ],
  [
    "two tools of one name",
    () => AgUi.read(agUser("Hi", { tools: [{ name: "t", description: "" }, { name: "t", description: "" }] })),
    "invalid_body",
    "tools[1].name"
  ],
  [
    "only messages of other roles",
    () =>
      AgUi.read({
        threadId: "s1",
        runId: "r1",
        messages: [{ id: "1", role: "system", content: canary }, { id: "2", role: "developer", content: canary }]
      }),
    "invalid_body",
    "messages"
  ]
]

describe("request bodies", () => {
  for (const [name, read, reason, field] of hostile) {
    it(`W-11: ${name} is refused with the field's name, without its content`, () => {
      const result = read()
      assert.deepStrictEqual(told(result), [reason, field])
      if (Result.isFailure(result)) {
        assert.notInclude(result.failure.message, canary)
        assert.match(result.failure.message, /^[\w[\]. ()]+: [^\n]{8,120}$/)
      }
    })
  }

  it("W-11: UiStream.read and AgUi.read take only the last message, whatever precedes it", () => {
    const before = [
      { id: "0", role: "system", parts: [{ type: "text", text: canary }] },
      { id: "1", role: "assistant", parts: [{ type: "text", text: canary }] },
      { id: "2", role: "user", parts: [{ type: "text", text: canary }] }
    ]
    const read = UiStream.read({ ...uiUser(text), messages: [...before, { id: "m1", role: "user", parts: text }] })
    assert.deepStrictEqual(told(read), [{ _tag: "Say", id: "m1", content: "Hi" }])
    const messages = [
      { id: "0", role: "developer", content: canary },
      { id: "1", role: "tool", toolCallId: "c", content: canary },
      { id: "m1", role: "user", content: "Hi" }
    ]
    assert.deepStrictEqual(told(AgUi.read(agUser("", { messages }))), [{ _tag: "Say", id: "m1", content: "Hi" }])
  })

  it("W-11: files come as parts, and by address only if addresses are allowed", () => {
    const url = "https://example.com/a.pdf"
    const read = UiStream.read(uiUser([text[0], file(png), { ...file(url, "application/pdf"), filename: "a.pdf" }]), {
      allowUrl: (one) => one === url
    })
    const content: ReadonlyArray<Message.Part> = [
      { type: "text", text: "Hi" },
      { type: "image", mediaType: "image/png", data: "iVBORw0KGgo=" },
      { type: "file", mediaType: "application/pdf", url, filename: "a.pdf" }
    ]
    assert.deepStrictEqual(told(read), [{ _tag: "Say", id: "m1", content }])
    const source = { type: "data", value: "iVBORw0KGgo=", mimeType: "image/png" }
    assert.deepStrictEqual(told(AgUi.read(agUser([{ type: "text", text: "Hi" }, { type: "image", source }]))), [
      { _tag: "Say", id: "m1", content: content.slice(0, 2) }
    ])
  })

  it("W-11: UiStream.read skips a history of 12 MB", () => {
    const old = { id: "0", role: "assistant", parts: [{ type: "text", text: "x".repeat(12_000_000) }] }
    const read = UiStream.read({ ...uiUser(text), messages: [old, { id: "m1", role: "user", parts: text }] })
    assert.deepStrictEqual(told(read), [{ _tag: "Say", id: "m1", content: "Hi" }])
    const parts = [
      { type: "step-start" },
      { type: "dynamic-tool", toolCallId: "e", state: "output-available", output: "x".repeat(12_000_000) },
      { type: "dynamic-tool", toolCallId: "p", state: "approval-responded", approval: { id: "r~p", approved: true } }
    ]
    assert.deepStrictEqual(told(UiStream.read(uiAssistant(parts))), [{ _tag: "Approve", id: "r~p" }])
  })

  it("W-11: JavaScript property names have no special meaning in a body", () => {
    const edits = JSON.parse(
      "{\"__proto__\":{\"amount\":1},\"p\":{\"__proto__\":{\"admin\":true},\"amount\":2}}"
    ) as object
    const responded = (toolCallId: string) => ({
      type: "dynamic-tool",
      toolCallId,
      state: "approval-responded",
      approval: { id: `r~${toolCallId}`, approved: true }
    })
    const read = UiStream.read(uiAssistant(["p", "toString", "constructor"].map(responded), { edits }))
    const actions = told(read) as ReadonlyArray<Body.Approve>
    assert.deepStrictEqual(actions.map(({ edits }) => edits), [{ amount: 2 }, undefined, undefined])
    assert.isFalse(Object.hasOwn(actions[0]?.edits ?? {}, "__proto__"))
    assert.isUndefined(({} as { readonly admin?: unknown }).admin)
  })

  it("W-11: an answer has the id of its question, and only the last step answers", () => {
    const question = (id: string, toolCallId: string) => ({ type: "data-heddle-question", id, data: { toolCallId } })
    const output = (toolCallId: string, output: unknown) => ({
      type: "dynamic-tool",
      toolCallId,
      state: "output-available",
      output
    })
    const read = UiStream.read(uiAssistant([
      { type: "step-start" },
      output("q0", canary),
      question("r0~q0", "q0"),
      { type: "step-start" },
      output("q1", { city: "Oslo" }),
      question("r1~q1", "q1"),
      { type: "dynamic-tool", toolCallId: "m1", state: "output-error", errorText: "No." },
      question("r1~m1", "m1"),
      output("e1", canary)
    ]))
    assert.deepStrictEqual(told(read), [
      { _tag: "Answer", id: "r1~q1", value: { city: "Oslo" } },
      { _tag: "Answer", id: "r1~m1", error: "No." }
    ])
    assert.strictEqual(Result.getOrThrow(read).messageId, "a1")
  })

  it("O-29: a client that lacks a reply retries by the message or by its number of steps", () => {
    const message = { _tag: "Say", id: "m1", content: "Hi" } as const
    const sent: Body.Retry = { _tag: "Retry", message, steps: 0, isRegeneration: false }
    assert.deepStrictEqual(told(UiStream.read(uiUser(text, { messageId: "m1" }))), [sent])
    assert.deepStrictEqual(told(UiStream.read(uiUser(text, { messageId: null }))), [message])
    const regenerated = [{ ...sent, isRegeneration: true }]
    for (const messageId of [undefined, "m1", "a1"]) {
      assert.deepStrictEqual(
        told(UiStream.read(uiUser(text, { trigger: "regenerate-message", messageId }))),
        regenerated
      )
    }
    const start = { type: "step-start" }
    const said = { type: "text", text: "Well." }
    const call = { type: "dynamic-tool", toolCallId: "c", state: "output-available", output: canary }
    const reset = { type: "data-heddle-reset", data: {} }
    const counts = [
      [],
      [start],
      [said],
      [start, said, call, start, start, said, start],
      [start, said, reset, start, call],
      [start, reset, start, said, said]
    ].map((parts) => {
      const posted = Result.getOrThrow(UiStream.read(uiAssistant(parts)))
      assert.strictEqual(posted.messageId, "a1")
      return posted.actions
    })
    assert.deepStrictEqual(
      counts,
      [0, 1, 1, 3, 1, 1].map((steps) => [{ _tag: "Retry" as const, steps, isRegeneration: false }])
    )
  })

  it("W-11: an approval for a call of an inner run is the output of the outer call", () => {
    const read = (output: unknown) =>
      told(UiStream.read(uiAssistant([
        { type: "dynamic-tool", toolCallId: "c", state: "output-available", output },
        { type: "data-heddle-question", id: "r~c/p", data: { kind: "approval", toolCallId: "c" } }
      ])))
    assert.deepStrictEqual(read({ approved: true, arguments: { amount: 1 } }), [
      { _tag: "Approve", id: "r~c/p", edits: { amount: 1 } }
    ])
    assert.deepStrictEqual(read({ approved: false, reason: "No." }), [{ _tag: "Deny", id: "r~c/p", reason: "No." }])
    assert.deepStrictEqual(read("yes"), [{ _tag: "Answer", id: "r~c/p", value: "yes" }])
  })

  it("W-11: an output names the question that it answers if one run asks several questions for a call", () => {
    const question = (id: string, kind: string) => ({
      type: "data-heddle-question",
      id,
      data: { kind, toolCallId: "c" }
    })
    const of = (kind: string, ...ids: ReadonlyArray<string>) => (given: object) =>
      told(UiStream.read(uiAssistant([
        { type: "dynamic-tool", toolCallId: "c", state: "output-available", ...given },
        ...ids.map((id) => question(id, kind))
      ])))
    for (const kind of ["approval", "unknown"]) {
      const both = of(kind, "r~c/p", "r~c/p_2")
      for (const id of ["r~c/p", "r~c/p_2"]) {
        assert.deepStrictEqual(both({ output: { id, approved: true } }), [{ _tag: "Approve", id }])
        assert.deepStrictEqual(both({ output: { id, approved: false } }), [{ _tag: "Deny", id }])
      }
      // The id of a call names no wait, and the server refuses it.
      for (const output of [{ approved: true }, { id: "r~c/x", approved: true }, { id: 7, approved: true }]) {
        assert.deepStrictEqual(both({ output }), [{ _tag: "Approve", id: "c" }])
      }
      const only = of(kind, "r~c/p_2")
      assert.deepStrictEqual(only({ output: { id: "r~c/p", approved: true } }), [{ _tag: "Approve", id: "c" }])
      assert.deepStrictEqual(only({ output: { id: "r~c/p_2", approved: true } }), [{ _tag: "Approve", id: "r~c/p_2" }])
      // A question of an earlier run is over, and one that comes again is the same.
      assert.deepStrictEqual(of(kind, "q~c/p", "r~c/p_2", "r~c/p_2")({ output: { approved: true } }), [
        { _tag: "Approve", id: "r~c/p_2" }
      ])
    }
    for (const kind of ["question", "manual"]) {
      const both = of(kind, "r~c/a", "r~c/a_2")
      for (const id of ["r~c/a", "r~c/a_2"]) {
        assert.deepStrictEqual(both({ output: { id, value: null } }), [{ _tag: "Answer", id, value: null }])
        assert.deepStrictEqual(both({ output: { id, error: "No." } }), [{ _tag: "Answer", id, error: "No." }])
        const refused = Result.getOrThrow(Result.flip(UiStream.read(uiAssistant([
          { type: "dynamic-tool", toolCallId: "c", state: "output-available", output: { id } },
          question(id, kind)
        ]))))
        assert.strictEqual(refused.field, "messages[1].parts[0].output.value")
      }
      assert.deepStrictEqual(both({ output: "Oslo" }), [{ _tag: "Answer", id: "c", value: "Oslo" }])
      assert.deepStrictEqual(both({ state: "output-error", errorText: "No." }), [
        { _tag: "Answer", id: "c", error: "No." }
      ])
      // An answer to the only question may have an id of its own.
      const only = of(kind, "r~c/a")
      assert.deepStrictEqual(only({ output: { id: "x" } }), [{ _tag: "Answer", id: "r~c/a", value: { id: "x" } }])
    }
    const forged = UiStream.read(uiAssistant([
      { type: "dynamic-tool", toolCallId: "r~c", state: "output-available", output: { approved: true } },
      ...["r~r%7Ec/p", "r~r%7Ec/p_2"].map((id) => ({
        type: "data-heddle-question",
        id,
        data: { kind: "approval", toolCallId: "r~c" }
      }))
    ]))
    assert.deepStrictEqual(told(forged), [{ _tag: "Approve", id: "r%7Ec" }])
  })

  it("W-11: results of client tools are answers, and results that the server sent are not", () => {
    const read = AgUi.read(agUser("", {
      tools: [{ name: "locate", description: "Where the user is", parameters: { type: "object" } }],
      messages: [
        { id: "a1", role: "assistant", toolCalls: [] },
        { id: "res-r0-e", role: "tool", toolCallId: "e", content: canary },
        { id: "t1", role: "tool", toolCallId: "c1", content: "Oslo" },
        { id: "t2", role: "tool", toolCallId: "c2", content: "", error: "denied by the browser" }
      ]
    }))
    assert.deepStrictEqual(told(read), [
      { _tag: "Answer", id: "c1", messageId: "a1", value: "Oslo" },
      { _tag: "Answer", id: "c2", messageId: "a1", error: "denied by the browser" }
    ])
    assert.deepStrictEqual(Result.getOrThrow(read).clientTools.map(({ name }) => name), ["locate"])
  })

  it("W-11: a text of the greatest length is accepted, and a text with one more character is refused", () => {
    const allowUrl = () => true
    const link = (length: number) => `https://example.com/${"a".repeat(length - 20)}`
    const lengths: ReadonlyArray<readonly [name: string, most: number, read: (length: number) => unknown]> = [
      ["the address of a file", 8192, (length) => UiStream.read(uiUser([file(link(length))]), { allowUrl })],
      ["the address of an image", 8192, (length) => {
        const source = { type: "url", value: link(length), mimeType: "image/png" }
        return AgUi.read(agUser([{ type: "image", source }]), { allowUrl })
      }],
      [
        "the name of a file",
        255,
        (length) =>
          UiStream.read(
            uiUser([{ ...file("data:text/plain;base64,iVBORw0KGgo=", "text/plain"), filename: "a".repeat(length) }])
          )
      ],
      ["the id of a session", 128, (length) => UiStream.read(uiUser(text, { id: "a".repeat(length) }))],
      ["the id of a thread", 128, (length) => AgUi.read(agUser("Hi", { threadId: "a".repeat(length) }))],
      ["the id of a run", 512, (length) => AgUi.read(agUser("Hi", { runId: "a".repeat(length) }))],
      ["the id of a message", 512, (length) => {
        const messages = [{ id: "a".repeat(length), role: "user", parts: text }]
        return UiStream.read({ ...uiUser(text), messages })
      }]
    ]
    for (const [name, most, read] of lengths) {
      const isTaken = [most, most + 1].map((length) => Result.isSuccess(read(length) as ReturnType<typeof AgUi.read>))
      assert.deepStrictEqual(isTaken, [true, false], name)
    }
  })

  it("W-11: bounds are options", () => {
    const bounds = { textBytes: 1 }
    assert.deepStrictEqual(told(UiStream.read(uiUser(text), { bounds })), ["too_large", "messages[0].parts[0].text"])
    assert.deepStrictEqual(told(AgUi.read(agUser("Hi"), { bounds })), ["too_large", "messages[0].content"])
  })
})
