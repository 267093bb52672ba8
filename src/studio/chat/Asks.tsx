/** All that waits for an answer: one card for the permissions, and one for each question. */
import type { ReactNode } from "react"
import { Approval, type OnAnswer, type Suspension } from "./Approval.tsx"
import { Question } from "./Question.tsx"

const isCall = ({ kind }: Suspension): boolean => kind === "approval" || kind === "unknown"

/** What waits for an answer. */
export const Asks = ({ onAnswer, suspensions }: {
  readonly suspensions: ReadonlyArray<Suspension>
  readonly onAnswer: OnAnswer
}): ReactNode => {
  const calls = suspensions.filter(isCall)
  return (
    <>
      {calls.length > 0 && <Approval suspensions={calls} onAnswer={onAnswer} />}
      {suspensions.filter((suspension) => !isCall(suspension)).map((suspension) => (
        <Question key={suspension.id} suspension={suspension} onAnswer={onAnswer} />
      ))}
    </>
  )
}
