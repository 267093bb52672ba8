/** The conversation. Only rows near the visible ones have elements, and its end stays in view while rows grow. */
import { useVirtualizer } from "@tanstack/react-virtual"
import { type ReactNode, useEffect, useLayoutEffect, useRef } from "react"
import type * as Fold from "../data/fold.ts"
import { type Actions, Answer, Boundary, type Said, User } from "./Message.tsx"
import * as Words from "./words.ts"

/** A run, and its first message. */
export interface Shown {
  readonly run: Fold.Run
  /** Run version: the run changes in place. */
  readonly version: number
  /** The run combined with the runs it continues. */
  readonly whole?: Fold.Run
  /** `true` for a run continued by another. */
  readonly isContinued?: boolean
  readonly message?: Said
}

/** Pixels from the end within which the end counts as in view. */
const near = 60

/** Pixels from the beginning at which to request older runs. */
const far = 800

/** Estimates a row's height before it is first shown. */
const guess = ({ message, run }: Shown): number => {
  const lines = (length: number) => 24 * Math.ceil(length / 90)
  const said = message === undefined ? 0 : 60 + lines(Words.saidText(message.content).length)
  const text = run.turns.reduce((sum, turn) => sum + (turn.owner === "" ? turn.text.length : 0), 0)
  return said + 60 + lines(text) + Math.min(run.calls.size, 5) * 40
}

/** The conversation. `children` come at its end: everything waiting for an answer. */
export const Thread = ({ actions, children, hasOlder = false, onOlder, onPlace, place, shown, waiting }: {
  /** Runs, oldest first. */
  readonly shown: ReadonlyArray<Shown>
  /** Messages without a run, after the runs. */
  readonly waiting?: ReactNode
  readonly actions: Actions
  readonly hasOlder?: boolean
  /** Reads older runs. */
  readonly onOlder?: () => void
  /** Id of the message shown instead of the end. */
  readonly place?: string | undefined
  /** Reports that the message named by `place` is shown. */
  readonly onPlace?: () => void
  readonly children?: ReactNode
}): ReactNode => {
  const scroller = useRef<HTMLDivElement>(null)
  const content = useRef<HTMLDivElement>(null)
  const isAtEnd = useRef(true)
  const last = useRef({ top: 0, height: 0, first: "" })
  const rows = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: (index) => guess(shown[index] as Shown),
    getItemKey: (index) => shown[index]?.run.id ?? index,
    overscan: 3,
    useFlushSync: false
  })
  const toEnd = () => {
    const element = scroller.current
    if (element !== null && isAtEnd.current) element.scrollTop = element.scrollHeight
  }
  const first = shown[0]?.run.id ?? ""
  useLayoutEffect(() => {
    const element = scroller.current
    const { first: before } = last.current
    last.current.first = first
    const place = before === "" || before === first ? -1 : shown.findIndex(({ run }) => run.id === before)
    // Older rows came before the visible rows, which stay in place.
    const added = place > 0 ? rows.measurementsCache[place]?.start : undefined
    if (element !== null && added !== undefined && !isAtEnd.current) element.scrollTop += added
    toEnd()
  })
  const placed = place === undefined ? -1 : shown.findIndex(({ message }) => message?.id === place)
  useLayoutEffect(() => {
    if (placed < 0) return
    isAtEnd.current = false
    rows.scrollToIndex(placed, { align: "start" })
    onPlace?.()
  }, [placed])
  useEffect(() => {
    const observer = new ResizeObserver(toEnd)
    if (scroller.current !== null) observer.observe(scroller.current)
    if (content.current !== null) observer.observe(content.current)
    return () => observer.disconnect()
  }, [])
  const onScroll = () => {
    const element = scroller.current
    if (element === null) return
    const { clientHeight, scrollHeight, scrollTop } = element
    if (scrollHeight - scrollTop - clientHeight < near) isAtEnd.current = true
    // Browsers scroll up by themselves when rows become shorter. Without such a change, the reader has scrolled up.
    else if (scrollTop < last.current.top && scrollHeight >= last.current.height) isAtEnd.current = false
    last.current.top = scrollTop
    last.current.height = scrollHeight
    if (hasOlder && scrollTop < far) onOlder?.()
  }
  useEffect(() => {
    const element = scroller.current
    if (hasOlder && element !== null && element.scrollHeight <= element.clientHeight + far) onOlder?.()
  }, [hasOlder, first, onOlder])
  return (
    <>
      <div
        ref={scroller}
        className="thread"
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label="Conversation"
        onScroll={onScroll}
      >
        <div ref={content} className="content">
          <div className="rows" style={{ height: rows.getTotalSize() }}>
            {rows.getVirtualItems().map(({ index, key, start }) => {
              const row = shown[index]
              if (row === undefined) return null
              const { isContinued = false, message, run, version, whole = run } = row
              return (
                <div
                  key={key}
                  ref={rows.measureElement}
                  data-index={index}
                  className="row"
                  style={{ transform: `translateY(${start}px)` }}
                >
                  {message !== undefined && (
                    <Boundary text={() => Words.saidText(message.content)}>
                      <User message={message} actions={actions} />
                    </Boundary>
                  )}
                  <Answer
                    run={run}
                    version={version}
                    pictured={isContinued ? undefined : whole}
                    message={message}
                    isLast={index === shown.length - 1}
                    actions={actions}
                  />
                </div>
              )
            })}
          </div>
          {waiting}
          {children !== undefined && <div className="row asks">{children}</div>}
        </div>
      </div>
    </>
  )
}
