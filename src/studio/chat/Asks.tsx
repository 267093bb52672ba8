/** Everything waiting for an answer: one card for the permissions, and one for each question. */
import { type ReactNode, useEffect } from "react"
import { Approval, type OnAnswer, type Suspension, type ToolFacts } from "./Approval.tsx"
import { Question } from "./Question.tsx"

const isCall = ({ kind }: Suspension): boolean => kind === "approval" || kind === "unknown"

/** Interval in milliseconds for a visible page to check for answers from other pages. */
const interval = 2_500

/** Everything waiting for an answer. */
export const Asks = ({ facts, onAnswer, onLook, suspensions }: {
  readonly suspensions: ReadonlyArray<Suspension>
  readonly onAnswer: OnAnswer
  /** Reads the waiting calls again: a decision without a run has no event. */
  readonly onLook?: () => void
  /** Facts about the agent's tools. */
  readonly facts?: ReadonlyArray<ToolFacts> | undefined
}): ReactNode => {
  useEffect(() => {
    if (onLook === undefined) return
    const look = () => {
      if (document.visibilityState === "visible") onLook()
    }
    const timer = setInterval(look, interval)
    addEventListener("focus", look)
    document.addEventListener("visibilitychange", look)
    return () => {
      clearInterval(timer)
      removeEventListener("focus", look)
      document.removeEventListener("visibilitychange", look)
    }
  }, [onLook])
  const calls = suspensions.filter(isCall)
  return (
    <>
      {calls.length > 0 && <Approval suspensions={calls} facts={facts} onAnswer={onAnswer} />}
      {suspensions.filter((suspension) => !isCall(suspension)).map((suspension) => (
        <Question key={suspension.id} suspension={suspension} onAnswer={onAnswer} />
      ))}
    </>
  )
}
