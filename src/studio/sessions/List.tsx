/** Session list: agents, search, and actions on a session. */
import { memo, type ReactNode, useEffect, useId, useRef, useState, useSyncExternalStore } from "react"
import type * as Client from "../data/client.ts"
import type * as Lists from "../data/list.ts"
import { addressOf, type Studio } from "../data/studio.ts"
import { Icon } from "../parts/Icon.tsx"
import { Prompt } from "../parts/later.tsx"
import { announce } from "../parts/Live.tsx"
import { plainOf } from "../parts/plain.ts"

const minute = 60_000
const day = 24 * 60 * minute

/** Returns the age of a time, in the fewest words. */
const sinceOf = (time: number, now: number): string => {
  const past = Math.max(0, now - time)
  if (past < minute) return "now"
  if (past < 60 * minute) return `${Math.floor(past / minute)} min`
  if (past < day) return `${Math.floor(past / (60 * minute))} h`
  return new Date(time).toLocaleDateString([], { day: "numeric", month: "short" })
}

/** Returns a session's state in words, and whether it deserves attention. */
const stateOf = ({ lastLine, next, status }: Client.Listed): readonly [text: string, kind: string] => {
  if (next === "wait") return ["needs you", "asks"]
  if (next !== "nothing") return ["works", "works"]
  if (status === "error") return ["failed", "failed"]
  if (status === "unreadable") return ["cannot be read", "failed"]
  const line = plainOf(lastLine)
  return status === "stopped" ? [line === "" ? "stopped" : `stopped · ${line}`, "quiet"] : [line, "quiet"]
}

type Task = "rename" | "delete"

interface ItemProperties {
  readonly session: Client.Listed
  readonly isShown: boolean
  /** `true` if a text for it was typed but not sent. */
  readonly isDrafted: boolean
  readonly now: number
  readonly onTask: (task: Task, session: Client.Listed) => void
  readonly onPin: (session: Client.Listed) => void
  readonly onShow: () => void
}

const Item = memo(({ isDrafted, isShown, now, onPin, onShow, onTask, session }: ItemProperties): ReactNode => {
  const { agent, id, pinned = false, title, updatedAt } = session
  const [state, kind] = stateOf(session)
  const menu = useId()
  const popover = useRef<HTMLDivElement>(null)
  const button = useRef<HTMLButtonElement>(null)
  const name = title === "" ? "Untitled" : plainOf(title)
  const place = (): void => {
    const { current } = popover
    const box = button.current?.getBoundingClientRect()
    if (current === null || box === undefined) return
    current.style.top = `${Math.min(box.bottom + 4, innerHeight - 140)}px`
    current.style.left = `${Math.max(8, Math.min(box.left, innerWidth - 180))}px`
  }
  const choose = (task: () => void) => () => {
    popover.current?.hidePopover()
    task()
  }
  return (
    <li>
      <a href={addressOf(agent, id)} aria-current={isShown ? "page" : undefined} onClick={onShow}>
        <span className="name">
          {pinned && <Icon name="pin" />}
          {pinned && <span className="hidden">Pinned:</span>}
          <span className="text">{name}</span>
        </span>
        <span className="about">
          {isDrafted && <span className="draft">Draft</span>}
          <span className={`status ${kind}`}>{state}</span>
          <time dateTime={new Date(updatedAt).toISOString()}>{sinceOf(updatedAt, now)}</time>
        </span>
      </a>
      <button
        ref={button}
        type="button"
        className="quiet menu"
        popoverTarget={menu}
        aria-label={`Menu of ${name}`}
      >
        <Icon name="more" />
      </button>
      <div
        ref={popover}
        id={menu}
        popover="auto"
        className="popover"
        onBeforeToggle={place}
        onKeyDown={(event) => {
          if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return
          event.preventDefault()
          const buttons = Array.from(event.currentTarget.querySelectorAll("button"))
          const at = buttons.findIndex((each) => each === document.activeElement)
          buttons.at((at + (event.key === "ArrowDown" ? 1 : -1)) % buttons.length)?.focus()
        }}
      >
        <button type="button" autoFocus onClick={choose(() => onTask("rename", session))}>Rename</button>
        <button type="button" onClick={choose(() => onPin(session))}>{pinned ? "Unpin" : "Pin"}</button>
        <button type="button" className="bad" onClick={choose(() => onTask("delete", session))}>Delete</button>
      </div>
    </li>
  )
})

const nameOf = ({ title }: Client.Listed): string => title === "" ? "Untitled" : plainOf(title)

/** Announces sessions newly needing an answer, and search results. */
const useListNews = ({ found, isRead, query, sessions }: Lists.Snapshot, shown: string | undefined): void => {
  const known = useRef<ReadonlyMap<string, boolean>>(undefined)
  useEffect(() => {
    if (!isRead) return
    const { current } = known
    for (const session of sessions) {
      const isNew = session.next === "wait" && current?.get(session.id) === false
      if (isNew && session.id !== shown) announce(`${nameOf(session)} needs you.`)
    }
    known.current = new Map([
      ...current ?? [],
      ...sessions.map(({ id, next }) => [id, next === "wait"] as const)
    ])
  }, [isRead, sessions])
  useEffect(() => {
    if (!isRead || query === "" || found !== query) return
    announce(sessions.length === 0 ? nothing : `${sessions.length} ${sessions.length === 1 ? "chat" : "chats"} found.`)
  }, [isRead, query, found, sessions.length])
}

const nothing = "No chat has this in its title or last line."

/** List of an agent's sessions. */
const Sessions = ({ list, onShow, shown, studio }: {
  readonly list: Lists.List
  readonly shown: string | undefined
  readonly studio: Studio
  readonly onShow: () => void
}): ReactNode => {
  const snapshot = useSyncExternalStore(list.subscribe, list.read)
  const { hasMore, isRead, query, sessions } = snapshot
  useListNews(snapshot, shown)
  const { drafted } = useSyncExternalStore(studio.subscribe, studio.read)
  const [task, setTask] = useState<{ readonly task: Task; readonly session: Client.Listed }>()
  const [refused, setRefused] = useState("")
  const now = Date.now()
  const sorted = sessions.toSorted((left, right) => Number(right.pinned ?? false) - Number(left.pinned ?? false))
  const attempt = async (request: Promise<string | undefined>, done: string) => {
    setTask(undefined)
    const sentence = await request ?? ""
    setRefused(sentence)
    if (sentence === "") announce(done)
  }
  return (
    <>
      <div className="search">
        <Icon name="search" />
        <input
          id="search"
          type="search"
          aria-label="Search sessions"
          placeholder="Title or last line"
          autoComplete="off"
          maxLength={200}
          value={query}
          onChange={(event) => list.search(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Escape" || query === "") return
            event.preventDefault()
            list.search("")
          }}
        />
      </div>
      {refused !== "" && <p role="alert" className="refused">{refused}</p>}
      <ul id="sessions">
        {sorted.map((session) => (
          <Item
            key={session.id}
            session={session}
            isShown={session.id === shown}
            isDrafted={session.id !== shown && drafted.has(session.id)}
            now={now}
            onShow={onShow}
            onTask={(task, session) => setTask({ task, session })}
            onPin={({ agent, id, pinned = false }) =>
              void attempt(studio.label(agent, id, { pinned: !pinned }), pinned ? "Unpinned." : "Pinned.")}
          />
        ))}
        {isRead && sessions.length === 0 && (
          <li className="none">
            {query === "" ? "Your chats will be listed here." : nothing}
          </li>
        )}
        {hasMore && (
          <li>
            <button type="button" className="quiet" onClick={list.more}>Older chats</button>
          </li>
        )}
      </ul>
      {task?.task === "rename" && (
        <Prompt
          title="Rename this chat"
          action="Rename"
          onClose={() => setTask(undefined)}
          onDone={(form) =>
            void attempt(
              studio.label(task.session.agent, task.session.id, { title: String(form.get("title")).trim() }),
              "Renamed."
            )}
        >
          <input
            name="title"
            aria-label="Title"
            maxLength={120}
            required
            autoFocus
            autoComplete="off"
            defaultValue={task.session.title}
          />
        </Prompt>
      )}
      {task?.task === "delete" && (
        <Prompt
          title="Delete this chat?"
          action="Delete"
          isDangerous
          onClose={() => setTask(undefined)}
          onDone={() => void attempt(studio.remove(task.session.agent, task.session.id), "Deleted.")}
        >
          <p>“{nameOf(task.session)}” and the record of its runs are deleted for good.</p>
        </Prompt>
      )}
    </>
  )
}

/** Side of the page: agents, their sessions, and the page's own controls. */
export const List = ({ agents, children, isInert, list, onNew, onShow, shown, studio }: {
  readonly agents: ReadonlyArray<Client.Agent>
  readonly list: Lists.List | undefined
  /** Id of the shown session. */
  readonly shown: string | undefined
  readonly studio: Studio
  /** `true` while it is closed or covered. */
  readonly isInert: boolean
  readonly onNew: (agent?: string) => void
  /** Reports that a session was chosen. */
  readonly onShow: () => void
  readonly children: ReactNode
}): ReactNode => (
  <nav id="side" aria-label="Sessions" inert={isInert}>
    <div className="head">
      <span className="brand">
        <Mark />Studio
      </span>
      <button type="button" onClick={() => onNew()}>
        <Icon name="new" />New chat
      </button>
    </div>
    {agents.length > 1 && (
      <select
        id="agents"
        aria-label="Agent"
        value={list?.agent ?? ""}
        onChange={(event) => onNew(event.currentTarget.value)}
      >
        {agents.map(({ name }) => <option key={name} value={name}>{name}</option>)}
      </select>
    )}
    {list === undefined ?
      <div className="filler" /> :
      <Sessions key={list.agent} list={list} shown={shown} studio={studio} onShow={onShow} />}
    {children}
  </nav>
)

/** Mark of the application: three threads. */
export const Mark = (): ReactNode => (
  <svg className="mark" viewBox="0 0 16 16" width="20" height="20" aria-hidden="true" focusable="false">
    <path className="early" d="M2 4h8" />
    <path className="plain" d="M5 8h9" />
    <path className="live" d="M3 12h7" />
  </svg>
)
