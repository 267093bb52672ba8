/** The message field. The page keeps the text typed for a session until the text is sent. */
import { type ReactNode, type Ref, useImperativeHandle, useLayoutEffect, useRef, useState } from "react"
import type { Mode } from "../data/client.ts"
import { Icon } from "../parts/Icon.tsx"
import { announce } from "../parts/Live.tsx"

/** Operations on the field for other parts of the page. */
export interface Handle {
  readonly focus: () => void
  /** Puts a text into the field, without sending anything. */
  readonly fill: (text: string) => void
}

/** Maximum field height, in pixels. */
const tallest = 260

/** The message field. A new `key` means another session. */
export const Composer = ({ agent, draft, isAsked, isRunning, isStopping, onDraft, onSend, onStop, ref }: {
  readonly agent: string
  /** Text typed before. */
  readonly draft: string
  /** `true` while calls wait for an answer, which comes first. */
  readonly isAsked: boolean
  readonly isRunning: boolean
  readonly isStopping: boolean
  readonly onDraft: (text: string) => void
  /** Sends a message, into the run under way or for the next run. Succeeds with a sentence if refused. */
  readonly onSend: (text: string, mode?: Mode) => Promise<string | undefined>
  readonly onStop: () => void
  readonly ref: Ref<Handle>
}): ReactNode => {
  const [text, setText] = useState(draft)
  const [isSending, setSending] = useState(false)
  const field = useRef<HTMLTextAreaElement>(null)
  const change = (next: string) => {
    setText(next)
    onDraft(next)
  }
  useImperativeHandle(ref, () => ({
    focus: () => field.current?.focus(),
    fill: (text) => {
      setText(text)
      onDraft(text)
      field.current?.focus()
    }
  }))
  useLayoutEffect(() => {
    const { current } = field
    if (current === null) return
    current.style.height = "auto"
    current.style.height = `${Math.min(current.scrollHeight, tallest)}px`
  }, [text])
  const isReady = text.trim() !== "" && !isAsked && !isSending
  const why = isAsked
    ? "Answer above first. What is typed here is kept."
    : isRunning
    ? `${agent} works. Enter sends a message into the run, before its next turn. Alt Enter keeps it for the next run.`
    : ""
  const send = async (mode: Mode = "steer") => {
    if (!isReady) return announce(why)
    setSending(true)
    change("")
    const refused = await onSend(text, isRunning ? mode : undefined)
    setSending(false)
    // Text typed meanwhile stays.
    if (refused !== undefined && field.current?.value === "") change(text)
  }
  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault()
        void send()
      }}
    >
      <div className="box" data-off={isAsked}>
        <textarea
          ref={field}
          id="message"
          aria-label="Message"
          rows={1}
          autoComplete="off"
          value={text}
          aria-describedby="message-state"
          placeholder={isAsked ? "Answer above first" : isRunning ? `Tell ${agent} while it works` : `Message ${agent}`}
          onChange={(event) => change(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return
            event.preventDefault()
            void send(event.altKey ? "next" : undefined)
          }}
        />
        {!(isRunning && isAsked) && (
          <button key="send" id={isRunning ? "steer" : "send"} className="round main" disabled={!isReady}>
            <Icon name="send" />
            <span className="hidden">{isRunning ? "Send into the run" : "Send"}</span>
          </button>
        )}
        {isRunning && (
          <button key="stop" type="button" id="stop" className="round" disabled={isStopping} onClick={onStop}>
            <Icon name="stop" />
            <span className="hidden">{isStopping ? "Stopping" : "Stop"}</span>
          </button>
        )}
      </div>
      <span id="message-state" className="hidden">{why}</span>
      <div className="keys">
        {isRunning && !isAsked && (
          <button
            type="button"
            id="queue"
            className="quiet"
            disabled={!isReady}
            onClick={() => void send("next")}
          >
            Send to the next run
          </button>
        )}
        <span aria-hidden="true">
          {isStopping
            ? "Stopping"
            : isAsked
            ? why
            : isRunning
            ? (
              <>
                <kbd>Alt Enter</kbd> · <kbd>Enter</kbd> sends into this run · <kbd>Esc</kbd> stops
              </>
            )
            : (
              <>
                <kbd>Enter</kbd> sends · <kbd>Shift Enter</kbd> starts a new line
              </>
            )}
        </span>
      </div>
    </form>
  )
}
