/** User messages and agent answers: text, calls, strip and usage. */
import { Component, memo, type ReactNode, useEffect, useRef, useState } from "react"
import type * as Fold from "../data/fold.ts"
import { Markdown } from "../markdown/Markdown.tsx"
import { Copy } from "../parts/Copy.tsx"
import { Sent } from "../parts/later.tsx"
import { Long } from "../parts/Long.tsx"
import { Calls } from "./Call.tsx"
import * as Words from "./words.ts"

/** A user message. */
export interface Said {
  readonly id: string
  readonly content: unknown
  /** Requested destination, if sent into a run under way. */
  readonly mode?: string
}

/** Branches of a session at a message. */
export interface Branches {
  /** Number of the shown branch, from 1. */
  readonly at: number
  readonly of: number
  /** Shows the branch a number of places after the shown branch. */
  readonly onStep: (places: 1 | -1) => void
}

/** Actions on messages. An absent function has no button. */
export interface Actions {
  /** A run's strip: its picture, drawn small. */
  readonly strip?: (run: Fold.Run, version: number) => ReactNode
  /** Stops one call of the run under way, by its path. */
  readonly onStopCall?: (path: string) => void
  /** Requests another answer to a message. */
  readonly onAgain?: (message: Said) => void
  /** Begins a branch with a reworded message. Succeeds with a sentence if refused. */
  readonly onEdit?: (message: Said, text: string) => Promise<string | undefined>
  readonly branches?: (message: Said) => Branches | undefined
}

/** A text as written. */
const Plain = ({ text }: { readonly text: string }): ReactNode => (
  <div className="plain">
    <Long text={text} />
  </div>
)

/** Shows the plain text of a message whose rendering failed. */
export class Boundary extends Component<{ readonly text: () => string; readonly children: ReactNode }> {
  override state = { isBroken: false }
  static getDerivedStateFromError(): { readonly isBroken: boolean } {
    return { isBroken: true }
  }
  override render(): ReactNode {
    if (!this.state.isBroken) return this.props.children
    return (
      <div className="broken">
        <p className="note">This message cannot be shown as usual. Its text follows.</p>
        <Plain text={this.props.text()} />
      </div>
    )
  }
}

const Edit = ({ message, onClose, onEdit }: {
  readonly message: Said
  readonly onEdit: NonNullable<Actions["onEdit"]>
  readonly onClose: () => void
}): ReactNode => {
  const [text, setText] = useState(() => Words.saidText(message.content))
  const [isSending, setSending] = useState(false)
  const [refused, setRefused] = useState<string>()
  const area = useRef<HTMLTextAreaElement>(null)
  useEffect(() => area.current?.focus(), [])
  const send = async () => {
    setSending(true)
    const sentence = await onEdit(message, text)
    setSending(false)
    if (sentence === undefined) onClose()
    else setRefused(sentence)
  }
  return (
    <form
      className="edit"
      onSubmit={(event) => {
        event.preventDefault()
        void send()
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault()
          event.currentTarget.requestSubmit()
        }
        if (event.key !== "Escape") return
        event.preventDefault()
        event.stopPropagation()
        onClose()
      }}
    >
      <textarea
        aria-label="Edit of your message"
        rows={Math.min(12, text.split("\n", 13).length + 1)}
        value={text}
        ref={area}
        onChange={(event) => setText(event.currentTarget.value)}
      />
      {refused !== undefined && <p className="wrong" role="alert">{refused}</p>}
      <p className="row">
        <button type="button" onClick={onClose}>Cancel</button>
        <button className="main" disabled={isSending || text.trim() === ""}>Send as a branch</button>
      </p>
    </form>
  )
}

const Steps = ({ at, of, onStep }: Branches): ReactNode => (
  <span className="branches" role="group" aria-label={`Branch ${at} of ${of}`}>
    <button type="button" className="quiet" aria-label="Previous branch" disabled={at <= 1} onClick={() => onStep(-1)}>
      ‹
    </button>
    {at} / {of}
    <button type="button" className="quiet" aria-label="Next branch" disabled={at >= of} onClick={() => onStep(1)}>
      ›
    </button>
  </span>
)

/** A user message. */
export const User = memo(({ actions, message }: { readonly message: Said; readonly actions: Actions }): ReactNode => {
  const [isEdited, setEdited] = useState(false)
  const text = Words.saidText(message.content)
  const branches = actions.branches?.(message)
  const { onEdit } = actions
  return (
    <article className="user">
      <h2 className="hidden">You</h2>
      {isEdited && onEdit !== undefined
        ? <Edit message={message} onEdit={onEdit} onClose={() => setEdited(false)} />
        : (
          <div className="said">
            <Long text={text} />
          </div>
        )}
      {(message.mode === "steer" || message.mode === "follow") && <p className="fate">{Words.taken}</p>}
      {/* The button that begins an edit stays in the page, hidden, so that it can take the focus back. */}
      <p className="foot" hidden={isEdited}>
        {branches !== undefined && branches.of > 1 && <Steps {...branches} />}
        <Copy text={text} what="your message" />
        {onEdit !== undefined && (
          <button
            type="button"
            className="quiet"
            aria-label="Edit your message"
            onClick={() => setEdited(true)}
          >
            Edit
          </button>
        )}
      </p>
    </article>
  )
})

type Group =
  | { readonly type: "calls"; readonly calls: Array<Fold.Call> }
  | { readonly type: "text" | "reasoning"; readonly text: string; readonly isGrowing: boolean }
  | { readonly type: "error"; readonly text: string }
  | { readonly type: "sent"; readonly sent: Fold.Sent }

/**
 * Returns the parts of an answer, in order. Consecutive calls form one group, even across turns, unless a message was
 * sent between them.
 */
const groupsOf = (run: Fold.Run): ReadonlyArray<Group> => {
  const groups: Array<Group> = []
  const left = new Set(run.sent)
  const send = (until: number) => {
    for (const sent of left) {
      if ((sent.turn ?? Infinity) > until) continue
      left.delete(sent)
      groups.push({ type: "sent", sent })
    }
  }
  for (const turn of run.turns) {
    if (turn.owner !== "") continue
    send(turn.index)
    for (const [index, part] of turn.parts.entries()) {
      if (part.type !== "call") {
        if (part.text.trim() === "") continue
        const isGrowing = turn.to === undefined && run.end === undefined && index === turn.parts.length - 1
        groups.push({ type: part.type, text: part.text, isGrowing })
        continue
      }
      const call = run.calls.get(part.path)
      if (call === undefined) continue
      const last = groups.at(-1)
      if (last?.type === "calls") last.calls.push(call)
      else groups.push({ type: "calls", calls: [call] })
    }
    if (turn.error !== undefined && run.outcome?._tag !== "Failed") {
      groups.push({ type: "error", text: turn.error.message })
    }
  }
  send(Infinity)
  return groups
}

/** Returns an answer's text. */
const textOf = (run: Fold.Run): string =>
  run.turns.filter(({ owner, text }) => owner === "" && text !== "").map(({ text }) => text).join("\n\n")

const Left = ({ run }: { readonly run: Fold.Run }): ReactNode => {
  const left = Words.leftOf(run)
  return left === "" ? null : <p className="left">{left}</p>
}

const Foot = ({ actions, isLast, message, run }: {
  readonly run: Fold.Run
  readonly message: Said | undefined
  readonly isLast: boolean
  readonly actions: Actions
}): ReactNode => {
  const usage = run.total ?? run.usage
  const figures = [
    ...run.startedAt === undefined ? [] : [Words.seconds(run.end ?? run.now)],
    Words.tokens(usage),
    Words.cost(usage),
    Words.spent(run.spent)
  ].filter((text) => text !== "")
  const { onAgain } = actions
  const isOver = run.end !== undefined
  return (
    <footer className="foot">
      {isOver
        ? <span className="figures">{figures.join(" · ")}</span>
        : <span className="works">{run.stopAt === undefined ? "works" : "stops"}</span>}
      {isOver && <Copy text={textOf(run)} what="the answer" />}
      {isOver && isLast && message !== undefined && onAgain !== undefined && (
        <button
          type="button"
          className="quiet"
          aria-label="Answer again"
          onClick={() => onAgain(message)}
        >
          Again
        </button>
      )}
    </footer>
  )
}

/** An answer. `version` belongs to the run, which changes in place. */
export const Answer = memo(({ actions, isLast, message, pictured, run, version }: {
  readonly run: Fold.Run
  readonly version: number
  /** The run for its strip. Absent if a later run's strip includes it. */
  readonly pictured: Fold.Run | undefined
  /** The answered message. */
  readonly message: Said | undefined
  readonly isLast: boolean
  readonly actions: Actions
}): ReactNode => {
  const end = Words.endOf(run)
  return (
    <article className="answer">
      <h2 className="hidden">Answer</h2>
      <Boundary text={() => textOf(run)}>
        {groupsOf(run).map((group, index) => {
          switch (group.type) {
            case "calls":
              return <Calls key={index} run={run} calls={group.calls} onStop={actions.onStopCall} />
            case "text":
              return (
                <div key={index} className="prose">
                  <Boundary text={() => group.text}>
                    <Markdown text={group.text} isGrowing={group.isGrowing} />
                  </Boundary>
                </div>
              )
            case "reasoning":
              return (
                <details key={index} className="think">
                  <summary>Reasoning</summary>
                  <Plain text={group.text} />
                </details>
              )
            case "error":
              return <p key={index} className="end bad">{group.text}</p>
            case "sent":
              return <Sent key={index} sent={group.sent} />
          }
        })}
        {pictured !== undefined && pictured.calls.size > 0 && actions.strip?.(pictured, version)}
        {end !== undefined && <p className={end.isBad ? "end bad" : "end"}>{Words.marked(end.text)}</p>}
        <Left run={run} />
      </Boundary>
      <Foot run={run} message={message} isLast={isLast} actions={actions} />
    </article>
  )
})
