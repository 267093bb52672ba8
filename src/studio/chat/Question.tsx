/** A question to the user, or a call whose result comes from the user: by choices, text, fields, or JSON. */
import { type FormEvent, type KeyboardEvent, type ReactNode, useEffect, useId, useRef, useState } from "react"
import { takeFocus } from "../parts/focus.ts"
import { announce } from "../parts/Live.tsx"
import { Long } from "../parts/Long.tsx"
import type { Answer, OnAnswer, Suspension } from "./Approval.tsx"
import * as Words from "./words.ts"

type Schema = { readonly [keyword: string]: unknown }

const isObject = (value: unknown): value is Schema =>
  typeof value === "object" && value !== null && !Array.isArray(value)

const typeOf = (schema: Schema | undefined): unknown => schema?.["type"]

/** A form field: a schema property with a type for a single input. */
interface Field {
  readonly name: string
  readonly schema: Schema
  readonly isRequired: boolean
}

const mostFields = 20

const isPlain = (schema: Schema): boolean =>
  Array.isArray(schema["enum"]) || ["string", "number", "integer", "boolean"].includes(String(typeOf(schema)))

/** Returns an object schema's fields, or `undefined` if any of them needs JSON. */
const fieldsOf = (schema: Schema | undefined): ReadonlyArray<Field> | undefined => {
  const properties = schema?.["properties"]
  if (typeOf(schema) !== "object" || !isObject(properties)) return undefined
  const required = schema?.["required"]
  const fields = Object.entries(properties).map(([name, property]): Field | undefined =>
    isObject(property) && isPlain(property)
      ? { name, schema: property, isRequired: Array.isArray(required) && required.includes(name) }
      : undefined
  )
  const found = fields.flatMap((field) => field ?? [])
  return found.length === fields.length && found.length > 0 && found.length <= mostFields ? found : undefined
}

/** Returns an answer's choices: the question's own, or those from an enumeration or a boolean. */
const choicesOf = ({ answerSchema, opts = [] }: Suspension): ReadonlyArray<unknown> => {
  if (opts.length > 0) return opts
  const schema: Schema | undefined = answerSchema
  const values = schema?.["enum"]
  if (Array.isArray(values) && values.length > 0 && values.length <= mostFields) return values
  return typeOf(schema) === "boolean" ? [true, false] : []
}

/** Returns a choice in words. */
const choiceOf = (value: unknown): string =>
  value === true ? "Yes" : value === false ? "No" : typeof value === "string"
    ? Words.marked(value.slice(0, 300))
    : Words.brief(value)

/** Describes the expected answer. */
const expectedOf = (schema: Schema): string => {
  const { description } = schema
  const about = typeof description === "string" ? `: ${Words.marked(description.slice(0, 300))}` : ""
  const type = typeOf(schema)
  if (Array.isArray(schema["enum"])) return `one of ${Words.brief(schema["enum"], 300)}`
  if (type === "string") return about === "" ? "a text" : about.slice(2)
  if (type === "integer" || type === "number") return `a number${about}`
  if (type === "boolean") return "true or false"
  return `JSON: ${Words.brief(schema["properties"] ?? schema, 400)}`
}

/** Returns a text's value, or a sentence about the text's fault. */
const valueOf = (text: string, schema: Schema | undefined, kind: string): { value: unknown } | string => {
  if (text.trim() === "") return "The answer is empty."
  if (schema === undefined ? kind === "question" : typeOf(schema) === "string") return { value: text }
  try {
    return { value: JSON.parse(text) }
  } catch (error) {
    if (schema === undefined) return { value: text }
    return `The answer is not JSON: ${error instanceof Error ? error.message : "it cannot be read"}`
  }
}

/** Returns a field's value, or `undefined` if left empty. */
const fieldValue = ({ schema }: Field, text: string): unknown => {
  if (Array.isArray(schema["enum"])) return text === "" ? undefined : schema["enum"][Number(text)]
  const type = typeOf(schema)
  if (type === "boolean") return text === "true"
  if (text === "") return undefined
  return type === "string" ? text : Number(text)
}

const Input = ({ field, id, onText, text }: {
  readonly field: Field
  readonly id: string
  readonly text: string
  readonly onText: (text: string) => void
}): ReactNode => {
  const { isRequired, schema } = field
  const type = typeOf(schema)
  if (Array.isArray(schema["enum"])) {
    return (
      <select id={id} value={text} required={isRequired} onChange={(event) => onText(event.currentTarget.value)}>
        <option value="">Choose</option>
        {schema["enum"].map((value: unknown, index) => <option key={index} value={index}>{choiceOf(value)}</option>)}
      </select>
    )
  }
  if (type === "boolean") {
    return (
      <input
        id={id}
        type="checkbox"
        checked={text === "true"}
        onChange={(event) => onText(String(event.currentTarget.checked))}
      />
    )
  }
  const isNumber = type === "number" || type === "integer"
  return (
    <input
      id={id}
      type={isNumber ? "number" : "text"}
      {...isNumber ? { step: type === "integer" ? 1 : "any" } : {}}
      required={isRequired}
      value={text}
      onChange={(event) => onText(event.currentTarget.value)}
    />
  )
}

/** A form with a field for each answer property. */
const Form = ({ fields, isSending, onValue }: {
  readonly fields: ReadonlyArray<Field>
  readonly isSending: boolean
  readonly onValue: (value: unknown) => void
}): ReactNode => {
  const id = useId()
  const [texts, setTexts] = useState<ReadonlyMap<string, string>>(new Map())
  const send = (event: FormEvent) => {
    event.preventDefault()
    const found = fields.map((field) => [field.name, fieldValue(field, texts.get(field.name) ?? "")] as const)
    onValue(Object.fromEntries(found.filter(([, value]) => value !== undefined)))
  }
  return (
    <form className="fields" onSubmit={send}>
      {fields.map((field, index) => {
        const { description } = field.schema
        return (
          <div key={field.name} className="field">
            <label htmlFor={`${id}${index}`}>
              {Words.marked(field.name)}
              {field.isRequired ? "" : " (optional)"}
              {typeof description === "string" ? `: ${Words.marked(description.slice(0, 300))}` : ""}
            </label>
            <Input
              id={`${id}${index}`}
              field={field}
              text={texts.get(field.name) ?? ""}
              onText={(text) => setTexts(new Map(texts).set(field.name, text))}
            />
          </div>
        )
      })}
      <div className="buttons">
        <button className="main" disabled={isSending}>Answer</button>
      </div>
    </form>
  )
}

/** A field for text or JSON. */
const Free = ({ isSending, onText, suspension }: {
  readonly suspension: Suspension
  readonly isSending: boolean
  readonly onText: (text: string) => void
}): ReactNode => {
  const id = useId()
  const [text, setText] = useState("")
  const { answerSchema, kind } = suspension
  const schema: Schema | undefined = answerSchema
  const isText = schema === undefined || typeOf(schema) === "string"
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return
    event.preventDefault()
    event.currentTarget.form?.requestSubmit()
  }
  return (
    <form
      className={isText ? "one words" : "one"}
      onSubmit={(event) => {
        event.preventDefault()
        onText(text)
      }}
    >
      <label htmlFor={id}>{kind === "manual" ? "Result" : "Answer"}</label>
      <textarea
        id={id}
        rows={Math.min(12, Math.max(1, text.split("\n", 13).length))}
        autoComplete="off"
        value={text}
        onChange={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {schema !== undefined && <p className="expected">Expected: {expectedOf(schema)}</p>}
      <div className="buttons">
        <button className="main" disabled={isSending}>Answer</button>
      </div>
    </form>
  )
}

/** A wait for a value from the user: a suspension of kind `"question"` or `"manual"`. */
export const Question = ({ onAnswer, suspension }: {
  readonly suspension: Suspension
  readonly onAnswer: OnAnswer
}): ReactNode => {
  const id = useId()
  const card = useRef<HTMLElement>(null)
  const [isSending, setSending] = useState(false)
  const [wrong, setWrong] = useState<string>()
  const { answerSchema, expiresAt, kind, question, toolCall } = suspension
  const title = question ?? (kind === "manual" ? "This call needs its result from you." : "What is your answer?")
  const choices = choicesOf(suspension)
  const fields = choices.length > 0 ? undefined : fieldsOf(answerSchema)
  useEffect(() => {
    takeFocus(card.current?.querySelector<HTMLElement>("textarea, input, select, .choices button") ?? null)
    announce(Words.marked(title.slice(0, 300)))
  }, [])
  const send = async (value: unknown) => {
    setSending(true)
    const answer: Answer = { id: suspension.id, value }
    const refused = await onAnswer([answer])
    setWrong(typeof refused === "object" ? refused.sentence : refused)
    setSending(false)
  }
  const onText = (text: string) => {
    const found = valueOf(text, answerSchema, kind)
    if (typeof found === "string") setWrong(found)
    else void send(found.value)
  }
  return (
    <section ref={card} className="ask" role="group" data-kind={kind} aria-labelledby={id}>
      <h2 id={id} tabIndex={-1}>
        <Long text={Words.marked(title)} />
      </h2>
      {kind === "manual" && (
        <>
          <h3>{Words.marked(toolCall.name)}</h3>
          {toolCall.arguments !== undefined && (
            <pre tabIndex={0} role="group" aria-label="Arguments"><Long text={Words.jsonOf(toolCall.arguments)} /></pre>
          )}
        </>
      )}
      {choices.length > 0
        ? (
          <div className="buttons choices">
            {choices.map((choice, index) => (
              <button
                key={index}
                type="button"
                disabled={isSending}
                onClick={() => void send(choice)}
              >
                {choiceOf(choice)}
              </button>
            ))}
          </div>
        )
        : fields === undefined
        ? <Free suspension={suspension} isSending={isSending} onText={onText} />
        : <Form fields={fields} isSending={isSending} onValue={(value) => void send(value)} />}
      {wrong !== undefined && <p className="wrong" role="alert">{wrong}</p>}
      {expiresAt !== undefined && <p className="expected">Until {new Date(expiresAt).toLocaleString()}</p>}
    </section>
  )
}
