/** The application: session list, chat, and the picture beside it. */
import {
  type CSSProperties,
  lazy,
  type ReactNode,
  Suspense,
  useCallback,
  useEffect,
  useMemo,
  useRef,
  useState,
  useSyncExternalStore
} from "react"
import * as Composer from "./chat/Composer.tsx"
import { Empty } from "./chat/Empty.tsx"
import type { Actions, Said } from "./chat/Message.tsx"
import { announceAnswers, useNews } from "./chat/news.ts"
import { Thread } from "./chat/Thread.tsx"
import * as Words from "./chat/words.ts"
import type * as Client from "./data/client.ts"
import * as Preferences from "./data/preferences.ts"
import type * as Store from "./data/store.ts"
import type { Studio } from "./data/studio.ts"
import { enter, keepFocus, useNarrow } from "./parts/focus.ts"
import { Icon } from "./parts/Icon.tsx"
import { Help, later, loadLater, Prompt, Waiting } from "./parts/later.tsx"
import { announce, Live } from "./parts/Live.tsx"
import { plainOf } from "./parts/plain.ts"
import { beginningOf, effectsBehind, useBranches } from "./sessions/Branches.tsx"
import { List } from "./sessions/List.tsx"

/** Tells whether a target takes keys as text. */
const isField = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable]") !== null

/** Tells whether an open element takes all keys. */
const isCovered = (): boolean => document.querySelector("dialog[open], [popover]:popover-open") !== null

/** Shows the session a number of places after the shown session. */
const step = (places: 1 | -1): void => {
  const links = Array.from(document.querySelectorAll<HTMLAnchorElement>("#sessions a"))
  const at = links.findIndex((link) => link.getAttribute("aria-current") === "page")
  links[at < 0 ? 0 : at + places]?.click()
}

/**
 * Returns the color schemes in the order in which a button changes them. Each step from the system's scheme is
 * visible.
 */
const schemesOf = (): ReadonlyArray<Preferences.Scheme> =>
  matchMedia("(prefers-color-scheme: dark)").matches ? ["system", "light", "dark"] : ["system", "dark", "light"]

const Scheme = (): ReactNode => {
  const [scheme, setScheme] = useState(Preferences.scheme)
  const schemes = schemesOf()
  const next = schemes[(schemes.indexOf(scheme) + 1) % schemes.length] ?? "system"
  return (
    <button
      type="button"
      className="quiet"
      aria-label={`Colors: ${scheme}. Change to ${next}`}
      title={`Colors: ${scheme}`}
      onClick={() => {
        Preferences.chooseScheme(next)
        setScheme(next)
      }}
    >
      <Icon name={scheme} />
    </button>
  )
}

/** Subscribes to nothing. */
const unchanging = () => () => {}

const silence =
  "The run is in another process: its replies and calls appear here once they are recorded. If that process has "
  + "ended, the run waits until another process takes over."

/** Returns a sentence about calls still running after a stop. */
const leftOf = ({ report, shown }: Store.Snapshot): string => {
  const run = shown.at(-1)?.run
  // The answer itself names the calls left running by its run.
  const said = new Set(run?.abandoned.map(({ id }) => id))
  const left = [...report?.refused ?? [], ...report?.unknown ?? []].filter((id) => !said.has(id))
  if (left.length === 0) return ""
  const calls = run?.calls
  const names = left.map((id) => Array.from(calls?.values() ?? []).find((call) => call.id === id)?.name ?? id)
  return `Stopped. These may still have an effect: ${names.join(", ")}.`
}

/** Picture, loaded when opened. */
const Picture = lazy(() => import("./run/Picture.tsx").then(({ Picture }) => ({ default: Picture })))

/** Picture border, loaded with the picture. */
const Divider = lazy(() => import("./Divider.tsx").then(({ Divider }) => ({ default: Divider })))

/** Strip of an answer, loaded after the text. */
const Strip = lazy(() => import("./run/Strip.tsx").then(({ Strip }) => ({ default: Strip })))

const asks = () => import("./chat/Asks.tsx")

/** Open approvals and questions. A page showing a conversation loads them in advance. */
const Asks = later(async () => (await asks()).Asks)

/** Access token form, not needed for most servers. */
const Login = later(async () => (await import("./Login.tsx")).Login)

/** Sentence about a branch a person did not confirm. */
const unsent = "Nothing was sent."

/** A branch for a person to confirm, because calls after its message may have changed something. */
interface Asked {
  readonly names: ReadonlyArray<string>
  readonly onDone: (isWanted: boolean) => void
}

/** A session, beside the picture of a run. */
const Session = ({ isBehind, onCover, onSide, session, studio }: {
  readonly session: Store.Session
  readonly studio: Studio
  readonly onSide: ReactNode
  /** `true` while the list covers the session. */
  readonly isBehind: boolean
  /** Reports whether the picture covers everything else. */
  readonly onCover: (isCovering: boolean) => void
}): ReactNode => {
  const { agents = [], facts, list, notice: misled } = useSyncExternalStore(studio.subscribe, studio.read)
  const login = useSyncExternalStore(studio.client.subscribe, studio.client.login)
  const snapshot = useSyncExternalStore(session.subscribe, session.read)
  const { agent, hasOlder, id, isFailed, isSilent, isStopping, notice, running, shown, state, suspensions, waiting } =
    snapshot
  const [pictured, setPictured] = useState<string>()
  const [isWide, setWide] = useState(false)
  const [isOpened, setOpened] = useState(false)
  const isNarrow = useNarrow("picture")
  const [width, setWidth] = useState(Preferences.pictureWidth)
  const composer = useRef<Composer.Handle>(null)
  const aside = useRef<HTMLElement>(null)
  const description = agents.find(({ name }) => name === agent)?.description ?? ""
  const title = snapshot.session?.title ?? ""
  const from = shown.findIndex(({ run }) => run.id === pictured)
  // An answer's last run has the picture of all its runs.
  const picture = from < 0 ? undefined : shown.slice(from).find(({ isContinued }) => !isContinued)
  const isCovering = picture !== undefined && (isWide || isNarrow)
  const isAsked = suspensions.length > 0
  const isAskedElsewhere = useSyncExternalStore(
    list?.subscribe ?? unchanging,
    () => list?.read().sessions.some((other) => other.id !== id && other.next === "wait") === true
  )
  const isEmpty = shown.length === 0 && waiting.length === 0 && state === "new"
  const left = leftOf(snapshot)
  const sentences = [misled, state === "gone" ? "" : notice].filter((each) => each !== "")
  const { at: branches, isOrphan } = useBranches(studio, snapshot)
  const [asked, setAsked] = useState<Asked>()
  const latest = useRef({ running, snapshot, tools: facts?.tools })
  latest.current = { running, snapshot, tools: facts?.tools }
  const place = studio.places.get(id)
  const warning = studio.warnings.get(id) ?? ""
  const { allowed = [] } = snapshot.session ?? {}

  /** Begins a branch, asking first if calls after its message may have changed something. */
  const branch = (message: Client.Said, content: Client.Said["content"]): Promise<string | undefined> => {
    const names = effectsBehind(latest.current.snapshot, message, latest.current.tools)
    if (names.length === 0) return studio.branch(message, content)
    return new Promise((resolve) => {
      const onDone = (isWanted: boolean) => {
        setAsked(undefined)
        resolve(isWanted ? studio.branch(message, content, names) : unsent)
      }
      setAsked({ names, onDone })
    })
  }

  const opened = (picture?.whole ?? picture?.run)?.id
  const open = (run: string | undefined) => {
    setPictured(run)
    setOpened(true)
  }
  const close = () => {
    setPictured(undefined)
    setWide(false)
    setOpened(false)
  }

  /** Withdraws a message. Its text returns to the field, unless another text is typed there. */
  const withdraw = async ({ content, id: message }: Store.Letter) => {
    const refused = await studio.withdraw(message)
    if (refused === undefined && studio.draftOf(id) === "" && typeof content === "string") {
      composer.current?.fill(content)
    }
  }

  const onStopCall = useCallback((path: string) => {
    const call = latest.current.snapshot.running?.calls.get(path)
    if (call !== undefined) announce(`Stopping ${Words.titleOf(call)}.`)
    void session.stopCall(path)
  }, [session])

  // The actions object stays the same while nothing in it changes, so that messages are not drawn again.
  const canBranch = running === undefined && !isAsked
  const actions = useMemo((): Actions => ({
    strip: (run, version) => (
      <Suspense fallback={<div className="run-strip" />}>
        <Strip
          run={run}
          version={version}
          isLive={latest.current.running !== undefined && run.end === undefined}
          isOpen={run.id === opened}
          onOpen={() => run.id === opened ? close() : open(run.id)}
        />
      </Suspense>
    ),
    branches,
    ...(running === undefined ? {} : { onStopCall }),
    ...(canBranch
      ? {
        onAgain: (message: Said) =>
          void session.attempt(async () => {
            const refused = await branch(message as Client.Said, (message as Client.Said).content)
            return refused === unsent ? undefined : refused
          }),
        onEdit: (message: Said, text: string) => branch(message as Client.Said, text)
      }
      : {})
  }), [branches, canBranch, opened, running, session, studio])

  useEffect(() => {
    if (!isEmpty) void asks()
  }, [isEmpty])

  useNews(snapshot, left)

  useEffect(() => announce(warning), [warning])

  useEffect(() => announce(isSilent ? silence : ""), [isSilent])

  useEffect(() => {
    document.title = `${isAsked || isAskedElsewhere ? "● " : ""}${title === "" ? agent : plainOf(title)} · Studio`
  }, [agent, isAsked, isAskedElsewhere, title])

  useEffect(() => {
    const { current } = composer
    if (matchMedia("(pointer: fine)").matches) current?.focus()
  }, [])

  const toggle = () => {
    if (picture === undefined) open(shown.at(-1)?.run.id)
    else close()
  }

  useEffect(() => {
    onCover(isCovering)
    return () => onCover(false)
  }, [isCovering])

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.isComposing || isCovered()) return
      if (event.key === "Escape") {
        // A field keeps the key for itself, except the field beside the stop button.
        if (isField(event.target) && (event.target as HTMLElement).id !== "message") return
        const isInside = aside.current?.contains(document.activeElement) === true
        if (isWide) setWide(false)
        else if (picture !== undefined && (isInside || isCovering || running === undefined)) close()
        else if (running !== undefined) void session.stop()
        else return
        event.preventDefault()
        return
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return
      if (event.key === "p") toggle()
      else if (event.key === "f" && picture !== undefined) setWide(!isWide)
      else return
      event.preventDefault()
    }
    document.addEventListener("keydown", onKey)
    return () => document.removeEventListener("keydown", onKey)
  })

  return (
    <div
      className="work"
      data-picture={picture === undefined ? "none" : isWide ? "wide" : "beside"}
      inert={isBehind}
      style={{ "--picture": `${width}%` } as CSSProperties}
    >
      <main id="main" tabIndex={-1} inert={isCovering}>
        <header className="bar">
          {onSide}
          <h1 tabIndex={-1}>{title === "" ? agent : plainOf(title)}</h1>
          <span className="description">{title === "" ? description : agent}</span>
          {shown.length > 0 && (
            <button
              type="button"
              className="quiet"
              aria-label="Picture"
              aria-expanded={picture !== undefined}
              aria-controls={picture === undefined ? undefined : "picture"}
              onClick={toggle}
            >
              <Icon name="picture" />
              <span className="word">Picture</span>
            </button>
          )}
        </header>
        {login.isAsked && <Login login={login} onToken={studio.client.enter} />}
        {state === "gone" && shown.length === 0
          ? (
            <div className="empty">
              <h2>{notice}</h2>
              <p className="description">The address may be wrong, or the chat was deleted.</p>
              <button type="button" className="main" onClick={() => studio.begin(agent)}>New chat</button>
            </div>
          )
          : isEmpty
          ? (
            <Empty
              agent={agent}
              description={description}
              facts={facts}
              onExample={(text) => composer.current?.fill(text)}
            />
          )
          : (
            <Thread
              actions={actions}
              shown={shown}
              waiting={<Waiting snapshot={snapshot} onWithdraw={(letter) => void withdraw(letter)} />}
              hasOlder={hasOlder}
              onOlder={session.readOlder}
              place={place === "" ? beginningOf(snapshot) : place}
              onPlace={() => void studio.places.delete(id)}
            >
              {isAsked && (
                <Asks
                  suspensions={suspensions}
                  facts={facts?.tools}
                  onAnswer={async (answers) => {
                    const refused = await session.answer(answers)
                    if (refused === undefined) announceAnswers(suspensions, answers)
                    return refused
                  }}
                  onLook={session.look}
                />
              )}
            </Thread>
          )}
        {isFailed && (
          <div className="failure">
            <p>The run failed. What was done stays done.</p>
            <button type="button" onClick={() => void session.retry()}>Try again</button>
          </div>
        )}
        {left !== "" && <p className="warning report">{left}</p>}
        {isSilent && <p className="warning">{silence}</p>}
        {isOrphan && <p className="warning">The chat from which this chat branched was deleted.</p>}
        {warning !== "" && <p className="warning">{warning}</p>}
        {allowed.length > 0 && (
          <div className="allowed" role="group" aria-label="Allowed in this chat">
            Allowed in this chat:
            {Array.from(new Set(allowed.map(({ name }) => name)), (name) => (
              <button
                key={name}
                type="button"
                className="quiet"
                onClick={() => void session.forget(name)}
              >
                {name}
                <Icon name="close" />
                <span className="hidden">: ask again</span>
              </button>
            ))}
          </div>
        )}
        {sentences.length > 0 && <p id="notice" role="alert">{sentences.join(" ")}</p>}
        {state === "gone" && shown.length > 0 && (
          <div className="failure" role="alert">
            <p>{notice}</p>
            <button type="button" onClick={() => studio.begin(agent)}>New chat</button>
          </div>
        )}
        {asked !== undefined && (
          <Prompt
            title="Begin a branch?"
            action="Begin the branch"
            onClose={() => asked.onDone(false)}
            onDone={() => asked.onDone(true)}
          >
            <p>What these calls did stays done, and the branch may do it again: {asked.names.join(", ")}.</p>
          </Prompt>
        )}
        {state !== "gone" && (!login.isAsked || login.isAgain) && (
          <Composer.Composer
            ref={composer}
            agent={agent}
            draft={studio.draftOf(id)}
            isAsked={isAsked}
            isRunning={running !== undefined}
            isStopping={isStopping}
            onDraft={(text) => studio.keepDraft(id, text)}
            onSend={(text, mode) => studio.send(text, mode)}
            onStop={() => void session.stop()}
          />
        )}
      </main>
      {picture !== undefined && (
        <>
          <aside ref={aside} id="picture" aria-label="Run">
            <Suspense fallback={<p className="hidden">The picture is loading.</p>}>
              <Divider width={width} onWidth={setWidth} onEnd={Preferences.keepPictureWidth} />
              <Picture
                key={picture.run.id}
                run={picture.whole ?? picture.run}
                version={picture.version}
                isLive={running?.id === picture.run.id}
                isWide={isWide}
                onWide={() => setWide(!isWide)}
                isOpened={isOpened || isCovering}
                onEntered={() => setOpened(false)}
                onClose={close}
                onStop={running === undefined ? undefined : onStopCall}
              />
            </Suspense>
          </aside>
        </>
      )}
    </div>
  )
}

/** The application. */
export const App = ({ studio }: { readonly studio: Studio }): ReactNode => {
  const { agents, list, notice, session } = useSyncExternalStore(studio.subscribe, studio.read)
  const login = useSyncExternalStore(studio.client.subscribe, studio.client.login)
  const [isSideOpen, setSideOpen] = useState(false)
  const [isHelped, setHelped] = useState(false)
  const [isPictureOver, setPictureOver] = useState(false)
  const isNarrow = useNarrow("list")
  const isOver = isNarrow && isSideOpen
  const burger = useRef<HTMLButtonElement>(null)

  useEffect(keepFocus, [])

  useEffect(() => void loadLater(), [])

  useEffect(() => {
    if (isOver) enter(document.getElementById("side"), ["#sessions a[aria-current]", "button"])
  }, [isOver])

  const begin = (agent?: string) => {
    studio.begin(agent)
    setSideOpen(false)
  }

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.isComposing || isCovered()) return
      if (event.key === "Escape" && isSideOpen) {
        event.preventDefault()
        event.stopPropagation()
        setSideOpen(false)
        return
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return
      switch (event.key) {
        case "/":
          // The list is always visible on a wide screen.
          if (burger.current?.offsetParent != null) setSideOpen(true)
          document.getElementById("search")?.focus()
          // A closed list has its field at the next frame.
          if (document.activeElement?.id !== "search") {
            requestAnimationFrame(() => document.getElementById("search")?.focus())
          }
          break
        case "n":
          begin()
          break
        case "[":
          step(-1)
          break
        case "]":
          step(1)
          break
        case "?":
          setHelped(true)
          break
        default:
          return
      }
      event.preventDefault()
    }
    document.addEventListener("keydown", onKey, true)
    return () => document.removeEventListener("keydown", onKey, true)
  })

  const side = (
    <button
      ref={burger}
      type="button"
      id="burger"
      className="quiet"
      aria-label="Sessions"
      aria-expanded={isSideOpen}
      aria-controls="side"
      onClick={() => setSideOpen(!isSideOpen)}
    >
      <Icon name="list" />
    </button>
  )

  if (agents === undefined) {
    return (
      <main className="start">
        {login.isAsked && <Login login={login} onToken={studio.client.enter} />}
        {notice !== "" && <p id="notice" role="alert">{notice}</p>}
      </main>
    )
  }
  return (
    <div className="studio" data-side={isSideOpen ? "open" : "closed"}>
      <a
        className="skip"
        inert={isOver || isPictureOver}
        href="#main"
        onClick={(event) => {
          event.preventDefault()
          const field = document.getElementById("message") ?? document.getElementById("main")
          field?.focus()
        }}
      >
        Skip to the message
      </a>
      <List
        agents={agents}
        list={list}
        shown={session?.id}
        studio={studio}
        isInert={isPictureOver || isNarrow && !isSideOpen}
        onNew={begin}
        onShow={() => setSideOpen(false)}
      >
        <div className="foot">
          <Scheme />
          <button type="button" className="quiet" aria-label="Keys" onClick={() => setHelped(true)}>
            <Icon name="help" />
          </button>
        </div>
      </List>
      <div className="veil" onClick={() => setSideOpen(false)} />
      {session === undefined
        ? (
          <main id="main" tabIndex={-1} className="start">
            {notice !== "" && <p id="notice" role="alert">{notice}</p>}
          </main>
        )
        : (
          <Session
            key={session.id}
            session={session}
            studio={studio}
            onSide={side}
            isBehind={isOver}
            onCover={setPictureOver}
          />
        )}
      <Live />
      {isHelped && <Help onClose={() => setHelped(false)} />}
    </div>
  )
}
