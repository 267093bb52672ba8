/** The values of options, looked at where they are given: a wrong one is a defect that names it and what is right. */
import type { OptionNames } from "../../internal/declare/schema.ts"
import { checkNames } from "../../internal/declare/schema.ts"
import * as Json from "../../internal/json.ts"

/** A test of a value, and the words for what passes it. */
export type Rule = readonly [isRight: (value: any) => boolean, words: string]

/** The rules of options by their names. */
export type Rules = Readonly<Record<string, Rule>>

const isText = (value: unknown): boolean => typeof value === "string"

export const text: Rule = [isText, "a text"]

export const flag: Rule = [(value) => typeof value === "boolean", "true or false"]

export const handler: Rule = [(value) => typeof value === "function", "a function"]

export const texts: Rule = [(value) => Array.isArray(value) && value.every(isText), "a list of texts"]

export const textsByName: Rule = [
  (value) => Json.isObject(value) && Object.values(value).every(isText),
  "an object of texts"
]

export const list: Rule = [Array.isArray, "a list"]

export const count: Rule = [
  (value) => value === Infinity || Number.isInteger(value) && value > 0,
  "a whole number above zero, or Infinity"
]

/** Throws for an option that does not exist, or whose value is none of its own. */
export const check = (subject: string, options: object, names: OptionNames, rules: Rules): void => {
  checkNames(subject, options, names)
  for (const [name, value] of Object.entries(options)) {
    const [isRight, words] = rules[name] ?? [() => true, ""]
    if (value === undefined || isRight(value)) continue
    throw new TypeError(`${subject}: ${name} must be ${words}; got: ${Json.render(value)}`)
  }
}
