/** The result of a program that is killed. */
import { Message, type Session } from "heddle"

/** What is compared: the session and, where this process has ended the run, its result. */
export const resultOf = ({ session }: Session.Kept, result?: Session.Done["result"]) => ({
  session: {
    messages: session.thread.messages.map((message) => ({
      role: message.role,
      text: Message.text(message),
      calls: message.toolCalls?.map(({ arguments: args, name }) => ({ name, args }))
    })),
    status: session.status,
    context: session.context
  },
  run: result && { usage: result.totalUsage, outcome: result.outcome, steps: result.steps.length }
})
