/**
 * Functions that take their subject first or last (`dual`). The form with the subject last is declared first, since the
 * compiler explains a call that fits none of the forms by the last one: it then names the argument that is wrong, and not
 * the subject.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { Session } from "heddle"
import { parseSync } from "oxc-parser"
import { isNode, type Node, readSources, type SourceText, walk } from "../support/source.ts"

/** A function that is made by `dual`: where it is, and what is wrong with its forms. */
interface Dual {
  readonly at: string
  readonly problem: string | undefined
}

const nodes = (value: unknown): ReadonlyArray<Node> => Array.isArray(value) ? value.filter(isNode) : []

const nodeAt = (node: Node, ...names: ReadonlyArray<string>): Node | undefined =>
  names.reduce<Node | undefined>((found, name) => {
    const next = found?.[name]
    return isNode(next) ? next : undefined
  }, node)

const firstName = (form: Node | undefined): unknown => nodes(form?.["params"])[0]?.["name"]

const problemOf = (declared: Node): string | undefined => {
  const literal = nodeAt(declared, "id", "typeAnnotation", "typeAnnotation")
  const forms = literal?.type === "TSTypeLiteral" ? nodes(literal["members"]) : []
  if (forms.length !== 2) return `${forms.length} forms`
  const [last, first] = forms.map((form) => nodeAt(form, "returnType", "typeAnnotation"))
  if (last?.type !== "TSFunctionType") return "the first form takes no subject last"
  if (first?.type === "TSFunctionType") return "the second form takes no subject first"
  return firstName(last) === firstName(forms[1]) ? undefined : "the forms name their subjects differently"
}

const dualsOf = ({ path, text }: SourceText): ReadonlyArray<Dual> => {
  const found: Array<Dual> = []
  walk(parseSync(path, text, { sourceType: "module" }).program as unknown as Node, (node) => {
    if (node.type !== "VariableDeclarator") return
    const called = nodeAt(node, "init", "callee")
    if (called?.["name"] !== "dual" && nodeAt(called ?? node, "property")?.["name"] !== "dual") return
    found.push({ at: `${path} ${String(nodeAt(node, "id")?.["name"])}`, problem: problemOf(node) })
  })
  return found
}

describe("functions with data-last and data-first forms", () => {
  it("every dual function declares its data-last form first", () => {
    const duals = readSources("src").flatMap(dualsOf)
    assert.includeMembers(duals.map(({ at }) => at), ["src/Session.ts answer", "src/Thread.ts append"])
    assert.deepStrictEqual(duals.filter(({ problem }) => problem !== undefined), [])
  })

  it("a dual function with forms in the wrong order, with one form, or with two subject names is found", () => {
    const last = "(id: string): (session: S) => S"
    const first = "(session: S, id: string): S"
    const text = `
      export const right: { ${last}; ${first} } = dual(2, f)
      export const reversed: { ${first}; ${last} } = dual(2, f)
      export const twice: { ${last}; ${last} } = Function.dual(2, f)
      export const named: { ${last}; ${first.replace("session", "self")} } = dual(2, f)
      export const single: ${last} = dual(2, f)
      export const other: { ${first}; ${last} } = f`
    assert.deepStrictEqual(dualsOf({ path: "planted.ts", text }), [
      { at: "planted.ts right", problem: undefined },
      { at: "planted.ts reversed", problem: "the first form takes no subject last" },
      { at: "planted.ts twice", problem: "the second form takes no subject first" },
      { at: "planted.ts named", problem: "the forms name their subjects differently" },
      { at: "planted.ts single", problem: "0 forms" }
    ])
  })

  it.effect("a wrong argument is refused at run time, and the compiler names that argument", () =>
    Effect.gen(function*() {
      const session = Session.make()
      // The lines are checked by `tsc -b`: where the compiler names another argument, both lines are errors.
      const wrong = [
        Session.approve(
          session,
          // @ts-expect-error Argument of type 'number'
          5
        ),
        Session.answer(
          session,
          // @ts-expect-error Argument of type 'number'
          5,
          "yes"
        ),
        Session.deny(
          session,
          // @ts-expect-error Argument of type 'number'
          5
        )
      ]
      for (const refused of wrong) {
        const { reason } = yield* Effect.flip(refused as Effect.Effect<unknown, Session.SessionError>)
        assert.strictEqual(reason, "unknown_tool_call_id")
      }
    }))
})
