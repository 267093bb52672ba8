/**
 * One card for all calls waiting for permission, or for a verdict about their unknown effect. Invisible characters are
 * shown as escapes in arguments and as marks elsewhere.
 */
import { type FormEvent, type ReactNode, useEffect, useId, useRef, useState } from "react"
import type * as Event from "../../Event.ts"
import type { Unanswered } from "../data/store.ts"
import { takeFocus } from "../parts/focus.ts"
import { announce } from "../parts/Live.tsx"
import { Long } from "../parts/Long.tsx"
import * as Words from "./words.ts"

/** An answer to a waiting call. */
export interface Answer {
  readonly id: string
  readonly approve?: boolean
  readonly arguments?: unknown
  readonly reason?: string
  readonly remember?: "tool" | "arguments"
  readonly value?: unknown
}

/** Sends answers. Succeeds with a sentence if they were refused, and the id of the answer concerned. */
export type OnAnswer = (answers: ReadonlyArray<Answer>) => Promise<Unanswered | undefined>

/** Facts about a tool on the card. */
export interface ToolFacts {
  readonly name: string
  readonly description: string
  readonly destructive: boolean
}

/** A waiting call. `remember` is the extent to which its approval may be remembered. */
export type Suspension = Event.PublicSuspension & { readonly remember?: "tool" | "arguments" }

/** Maximum length of editable arguments, in characters. */
const mostEdited = 20_000

/** Input about a call, until answered. */
interface Draft {
  readonly text?: string
  /** Text already warned about, allowed the second time. */
  readonly warned?: string
  readonly reason?: string
  readonly isRemembered?: boolean
}

const isEditable = ({ kind, toolCall }: Suspension, json: string): boolean =>
  kind === "approval" && toolCall.arguments !== undefined && json.length <= mostEdited

const kindOf = (value: unknown): string =>
  value === null
    ? "null"
    : Array.isArray(value)
    ? "a list"
    : typeof value === "object"
    ? "an object"
    : kinds[typeof value] ?? ""

const kinds: { readonly [type: string]: string } = { string: "a text", number: "a number", boolean: "true or false" }

/** Ends a warning about edited arguments. */
const again = "Allow again to run the call with these arguments."

/** Maximum number of named differences. */
const mostNamed = 5

/** Returns the differences in form between edited arguments and the model's, which passed the tool's schema. */
const differencesOf = (given: unknown, edited: unknown, place = ""): ReadonlyArray<string> => {
  const [was, is] = [kindOf(given), kindOf(edited)]
  if (was !== is) return was === "null" ? [] : [`${place} was ${was} and is ${is}`]
  if (Array.isArray(given) && Array.isArray(edited)) {
    const [first] = given
    return given.length === 0 ?
      [] :
      edited.flatMap((item, index) =>
        differencesOf(index < given.length ? given[index] : first, item, `${place}[${index}]`)
      )
  }
  if (was !== "an object") return []
  const [before, after] = [given, edited] as [
    { readonly [name: string]: unknown },
    { readonly [name: string]: unknown }
  ]
  const at = (name: string) => `${place}${place === "" ? "" : "."}${Words.marked(name.slice(0, 60))}`
  return [
    ...Object.keys(before).flatMap((name) =>
      Object.hasOwn(after, name) ? differencesOf(before[name], after[name], at(name)) : [`${at(name)} is missing`]
    ),
    ...Object.keys(after).flatMap((name) => Object.hasOwn(before, name) ? [] : [`${at(name)} is new`])
  ]
}

/** Returns a call's approval as edited, or the fault in its arguments. */
const approval = (suspension: Suspension, draft: Draft): Answer | string => {
  const { id, remember, toolCall } = suspension
  const json = Words.jsonOf(toolCall.arguments)
  const isEdited = draft.text !== undefined && draft.text.trim() !== json.trim()
  const remembered = draft.isRemembered === true && !isEdited && remember !== undefined ? { remember } : {}
  if (!isEdited) return { id, approve: true, ...remembered }
  try {
    const edited: unknown = JSON.parse(draft.text)
    if (typeof edited !== "object" || edited === null || Array.isArray(edited)) {
      return "The arguments must be a JSON object."
    }
    const differences = differencesOf(toolCall.arguments, edited)
    if (differences.length > 0 && draft.warned !== draft.text) {
      const named = differences.slice(0, mostNamed).join("; ")
      const more = differences.length > mostNamed ? `; and ${differences.length - mostNamed} more` : ""
      return `${named}${more}. The call may fail. ${again}`
    }
    return { id, approve: true, arguments: edited }
  } catch (error) {
    return `The arguments are not JSON: ${error instanceof Error ? error.message : "they cannot be read"}`
  }
}

const denial = ({ id }: Suspension, { reason = "" }: Draft): Answer =>
  reason.trim() === "" ? { id, approve: false } : { id, approve: false, reason: reason.trim() }

/** Longest tool description, in characters. */
const longestDescription = 240

const One = ({ draft, fact, isSending, isSingle, onAllow, onDeny, onDraft, place, suspension, wrong }: {
  readonly suspension: Suspension
  readonly fact: ToolFacts | undefined
  /** Place among calls to the same tool, as in `"1 of 2"`. Absent for a single call. */
  readonly place: string | undefined
  readonly draft: Draft
  readonly wrong: string | undefined
  readonly isSending: boolean
  /** `true` if the card's heading asks about this call. */
  readonly isSingle: boolean
  readonly onDraft: (draft: Draft) => void
  readonly onAllow: () => void
  readonly onDeny: () => void
}): ReactNode => {
  const id = useId()
  const { expiresAt, kind, question, remember, toolCall } = suspension
  const [json] = useState(() => Words.jsonOf(toolCall.arguments))
  const name = Words.marked(toolCall.name)
  const verb = kind === "approval" ? "Allow" : "Run again"
  const label = `${Words.titleOf(toolCall)}${place === undefined ? "" : `, ${place}`}`
  const text = draft.text ?? json
  const rows = Math.min(12, Math.max(1, text.split("\n", 13).length))
  return (
    <form
      className="one"
      aria-label={label}
      onSubmit={(event: FormEvent) => {
        event.preventDefault()
        onAllow()
      }}
    >
      <h3>
        {name}
        {place !== undefined && <span className="place">, {place}</span>}
        {fact?.destructive === true && <span className="may">may destroy</span>}
      </h3>
      {fact !== undefined && fact.description !== "" && (
        <p className="expected">
          {Words.marked(fact.description.slice(0, longestDescription))}
          {fact.description.length > longestDescription ? "…" : ""}
        </p>
      )}
      {!isSingle && question !== undefined && (
        <p>
          <Long text={Words.marked(question)} />
        </p>
      )}
      {isEditable(suspension, json)
        ? (
          <>
            <label htmlFor={`${id}a`}>
              Arguments<span className="hidden">of {label}</span>
            </label>
            <textarea
              id={`${id}a`}
              rows={rows}
              spellCheck={false}
              autoComplete="off"
              value={text}
              aria-invalid={wrong !== undefined}
              aria-describedby={wrong === undefined ? undefined : `${id}w`}
              onChange={(event) => onDraft({ ...draft, text: event.currentTarget.value })}
            />
          </>
        )
        : json !== ""
        ? <pre tabIndex={0} aria-label={`Arguments of ${name}`} role="group"><Long text={json} /></pre>
        : <p className="expected">Its arguments are not published.</p>}
      {wrong !== undefined && <p id={`${id}w`} className="wrong" role="alert">{wrong}</p>}
      {kind === "approval" && remember !== undefined && (
        <label className="check">
          <input
            type="checkbox"
            checked={draft.isRemembered === true}
            onChange={(event) => onDraft({ ...draft, isRemembered: event.currentTarget.checked })}
          />
          {remember === "tool" ? `Allow ${name} for this chat` : `Allow ${name} with these arguments for this chat`}
        </label>
      )}
      <div className="buttons">
        <button className="main" disabled={isSending} aria-label={`${verb} ${label}`}>{verb}</button>
        <button type="button" className="deny" disabled={isSending} aria-label={`Deny ${label}`} onClick={onDeny}>
          Deny
        </button>
        <input
          type="text"
          aria-label={`Reason, if ${name}${place === undefined ? "" : `, ${place},`} is denied`}
          placeholder="Reason, if denied"
          value={draft.reason ?? ""}
          onChange={(event) => onDraft({ ...draft, reason: event.currentTarget.value })}
          // The form would allow the call.
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.nativeEvent.isComposing) return
            event.preventDefault()
            if (!isSending && (draft.reason ?? "").trim() !== "") onDeny()
          }}
        />
      </div>
      {expiresAt !== undefined && <p className="expected">Until {new Date(expiresAt).toLocaleString()}</p>}
    </form>
  )
}

/** Returns a call's place among its tool's calls, if there are several. */
const placeOf = (suspensions: ReadonlyArray<Suspension>, suspension: Suspension): string | undefined => {
  const same = suspensions.filter(({ toolCall }) => toolCall.name === suspension.toolCall.name)
  return same.length < 2 ? undefined : `${same.indexOf(suspension) + 1} of ${same.length}`
}

/** Calls waiting for permission. */
export const Approval = ({ facts = [], onAnswer, suspensions }: {
  /** Suspensions of kind `"approval"` and `"unknown"`. */
  readonly suspensions: ReadonlyArray<Suspension>
  readonly facts?: ReadonlyArray<ToolFacts> | undefined
  readonly onAnswer: OnAnswer
}): ReactNode => {
  const heading = useRef<HTMLHeadingElement>(null)
  const id = useId()
  const [drafts, setDrafts] = useState<ReadonlyMap<string, Draft>>(new Map())
  const [wrongs, setWrongs] = useState<ReadonlyMap<string, string>>(new Map())
  const [isSending, setSending] = useState(false)
  const [refused, setRefused] = useState<string>()
  const ids = suspensions.map((suspension) => suspension.id).join(" ")
  const [only] = suspensions
  const isSingle = suspensions.length === 1
  const title = isSingle && only?.question !== undefined
    ? Words.marked(only.question)
    : isSingle
    ? "Allow this call?"
    : `Allow these ${suspensions.length} calls?`
  // Focus never goes directly to a deciding button.
  useEffect(() => {
    takeFocus(heading.current)
    announce(title.slice(0, 300))
  }, [ids])
  const send = async (answers: ReadonlyArray<Answer>) => {
    setSending(true)
    const refused = await onAnswer(answers)
    const { id: about, sentence } = typeof refused === "object" ? refused : { id: "", sentence: refused }
    setWrongs(new Map(about === "" ? [] : [[about, Words.marked(sentence ?? "")]]))
    setRefused(about === "" ? sentence : undefined)
    setSending(false)
  }
  const draftOf = (suspension: Suspension) => drafts.get(suspension.id) ?? {}
  const allow = (allowed: ReadonlyArray<Suspension>) => {
    const found = allowed.map((suspension) => [suspension.id, approval(suspension, draftOf(suspension))] as const)
    const wrong = new Map(found.flatMap(([key, each]) => typeof each === "string" ? [[key, each] as const] : []))
    setWrongs(wrong)
    if (wrong.size > 0) {
      setDrafts(
        new Map(
          Array.from(drafts, ([key, draft]) =>
            [
              key,
              wrong.get(key)?.endsWith(again) === true && draft.text !== undefined
                ? { ...draft, warned: draft.text }
                : draft
            ] as const)
        )
      )
      return
    }
    void send(found.flatMap(([, each]) => typeof each === "string" ? [] : [each]))
  }
  const deny = (denied: ReadonlyArray<Suspension>) =>
    void send(denied.map((suspension) => denial(suspension, draftOf(suspension))))
  return (
    <section className="ask" role="group" data-kind={only?.kind} aria-labelledby={id}>
      <h2 id={id} ref={heading} tabIndex={-1}>
        <Long text={title} />
      </h2>
      {suspensions.map((suspension) => (
        <One
          key={suspension.id}
          suspension={suspension}
          fact={facts.find((fact) => fact.name === suspension.toolCall.name)}
          place={placeOf(suspensions, suspension)}
          draft={draftOf(suspension)}
          wrong={wrongs.get(suspension.id)}
          isSending={isSending}
          isSingle={isSingle}
          onDraft={(draft) => setDrafts(new Map(drafts).set(suspension.id, draft))}
          onAllow={() => allow([suspension])}
          onDeny={() => deny([suspension])}
        />
      ))}
      {refused !== undefined && <p className="wrong" role="alert">{refused}</p>}
      {suspensions.length > 1 && (
        <div className="buttons every">
          <button type="button" disabled={isSending} onClick={() => deny(suspensions)}>Deny all</button>
          <button type="button" className="main" disabled={isSending} onClick={() => allow(suspensions)}>
            Allow all {suspensions.length}
          </button>
        </div>
      )}
    </section>
  )
}
