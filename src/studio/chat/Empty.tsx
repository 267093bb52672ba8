/** A session before its first message: the agent's description, model, tools and example messages. */
import type { ReactNode } from "react"
import type * as Client from "../data/client.ts"
import { Mark } from "../sessions/List.tsx"

/** Number of tools shown at first. The others are folded. */
const mostNamed = 12

const marks = { always: "asks first", sometimes: "may ask first" } as const

const Tool = ({ tool }: { readonly tool: Client.ToolFacts }): ReactNode => {
  const { agent, approval, description, destructive, name, readOnly } = tool
  const kind = approval !== "never" ? "asks" : agent !== undefined ? "agent" : readOnly ? "reads" : "writes"
  const words = [
    ...approval === "never" ? [] : [marks[approval]],
    ...agent === undefined ? [] : ["an agent"],
    ...destructive ? ["may destroy"] : []
  ]
  return (
    <li className={`tool ${kind}`} title={description}>
      <span className="dot" aria-hidden="true" />
      <span className="name">{name}</span>
      {words.length > 0 && <span className="mark">{words.join(", ")}</span>}
    </li>
  )
}

/** A session before its first message. */
export const Empty = ({ agent, description, facts, onExample }: {
  readonly agent: string
  readonly description: string
  /** Facts about the agent. Absent until read. */
  readonly facts: Client.Facts | undefined
  /** Fills the message field. */
  readonly onExample: (text: string) => void
}): ReactNode => {
  const { examples = [], model, tools = [] } = facts ?? {}
  const others = tools.slice(mostNamed)
  return (
    <div className="empty">
      <Mark />
      <h2>{agent}</h2>
      {description !== "" && <p className="description">{description}</p>}
      {model !== undefined && <p className="model">{model}</p>}
      {tools.length > 0 && (
        <>
          <h3 className="hidden">Tools</h3>
          <ul className="tools">
            {tools.slice(0, mostNamed).map((tool) => <Tool key={tool.name} tool={tool} />)}
          </ul>
          {others.length > 0 && (
            <details className="others">
              <summary>{others.length} more tools</summary>
              <ul className="tools">{others.map((tool) => <Tool key={tool.name} tool={tool} />)}</ul>
            </details>
          )}
        </>
      )}
      {examples.length > 0 && (
        <div className="examples" role="group" aria-label="Examples">
          {examples.map((text) => <button key={text} type="button" onClick={() => onExample(text)}>{text}</button>)}
        </div>
      )}
    </div>
  )
}
