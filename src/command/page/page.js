// The page of `heddle serve`. It reads the public events of a session as they happen, and shows whatever they say as
// text nodes: no text of a model, a tool or a user is ever read as HTML, as a style or as an address.

const $ = (id) => document.getElementById(id)

/** Makes an element with a class, and a text or children. */
const make = (tag, className = "", ...children) => {
  const element = document.createElement(tag)
  if (className !== "") element.className = className
  element.append(...children)
  return element
}

const button = (text, onPress, className = "") => {
  const element = make("button", className, text)
  element.type = "button"
  element.addEventListener("click", onPress)
  return element
}

/** Gives the browser time for a frame and for keys. */
const breathe = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel()
    port1.addEventListener("message", () => {
      port1.close()
      resolve()
    })
    port1.start()
    port2.postMessage(0)
  })

const pause = (millis) => new Promise((resolve) => setTimeout(resolve, millis))

const say = (text) => {
  $("status").textContent = text
}

const notice = (text) => {
  $("notice").hidden = text === ""
  $("notice").textContent = text
}

const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")

// Requests. A token is asked for where the server wants one, and is in this variable only.

let token
let isTokenGood = false
/** Tells whether the server took a token before. */
let isLetIn = false
let asking
const ended = "The server does not accept the token any more. Give another one to continue."

/** Asks for a token, once for all requests that wait for one. What the page shows stays, and so does what was typed. */
const askForToken = (text) => {
  token = undefined
  asking ??= new Promise((resolve) => {
    const form = $("login")
    if (text !== undefined) $("loginNote").textContent = text
    const around = isLetIn ? [$("composer")] : [$("log"), $("composer"), $("side"), $("menu")]
    form.classList.toggle("again", isLetIn)
    isTokenGood = false
    form.hidden = false
    for (const element of around) element.hidden = true
    $("token").focus()
    const onSubmit = (event) => {
      event.preventDefault()
      const given = $("token").value.trim()
      if (given === "") return
      token = given
      $("token").value = ""
      form.hidden = true
      for (const element of around) element.hidden = false
      form.removeEventListener("submit", onSubmit)
      asking = undefined
      resolve()
    }
    form.addEventListener("submit", onSubmit)
  })
  return asking
}

/** Tells whether the server takes the token for nothing any more: for one request it may be that it does not. */
const isTokenOver = async () => {
  const response = await fetch("/agents", { cache: "no-store", headers: { authorization: `Bearer ${token}` } })
  return response.status === 401 || response.status === 403
}

const request = async (method, path, { body, headers = {}, signal } = {}) => {
  while (true) {
    const used = token
    const response = await fetch(path, {
      method,
      signal,
      cache: "no-store",
      redirect: "error",
      headers: {
        ...headers,
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(used === undefined ? {} : { authorization: `Bearer ${used}` })
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) })
    })
    const isRefused = response.status === 401 || response.status === 403
    if (isRefused && used !== token) continue
    if (response.status === 401) await askForToken(isTokenGood ? ended : undefined)
    else if (response.status === 403 && used !== undefined && !isTokenGood) {
      await askForToken("The server did not accept the token. Try another one.")
    } else if (response.status === 403 && used !== undefined && await isTokenOver()) {
      // Another request may have asked meanwhile.
      if (used === token) await askForToken(ended)
    } else {
      if (used !== undefined && response.ok) isTokenGood = isLetIn = true
      return response
    }
  }
}

/** Returns the sentence of a refusal. */
const refusal = async (response) => {
  try {
    return String((await response.json()).error.message)
  } catch {
    return `The server answered with status ${response.status}.`
  }
}

/** Sends a request, and shows why it was refused. Returns nothing then. */
const attempt = async (method, path, options) => {
  try {
    const response = await request(method, path, options)
    if (response.ok) {
      notice("")
      return response
    }
    notice(await refusal(response))
  } catch {
    notice("The server cannot be reached.")
  }
}

/** Reads the frames of an event stream. A frame may have megabytes, and is looked through once. */
const frames = async function*(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let held = []
  let since = performance.now()
  const frame = () => {
    const found = { event: "message", data: [], id: undefined }
    for (const line of held.join("").split("\n")) {
      if (line.startsWith("data: ")) found.data.push(line.slice(6))
      else if (line.startsWith("id: ")) found.id = line.slice(4)
      else if (line.startsWith("event: ")) found.event = line.slice(7)
    }
    held = []
    return { ...found, data: found.data.join("\n") }
  }
  try {
    while (true) {
      const { done, value } = await reader.read()
      if (done) return
      let rest = value
      while (rest !== "") {
        const isCut = held.length > 0 && held.at(-1).endsWith("\n") && rest.startsWith("\n")
        const end = isCut ? 0 : rest.indexOf("\n\n")
        if (end < 0) {
          held.push(rest)
          break
        }
        held.push(rest.slice(0, end))
        rest = rest.slice(isCut ? 1 : end + 2)
        const next = frame()
        if (next.data !== "") yield next
        if (performance.now() - since > 20) {
          await breathe()
          since = performance.now()
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}

// Texts.

const shown = 4_000
const piece = 50_000

const count = (length) => `${length.toLocaleString("en")} characters`

/** Returns where a text may be cut: behind the end of a line, if one is near. */
const cutAt = (text, from, most) => {
  if (text.length - from <= most) return text.length
  const line = text.lastIndexOf("\n", from + most)
  return line > from + most / 2 ? line + 1 : from + most
}

/** Shows a text: all of it, or its beginning with a button that shows the rest in pieces. */
const long = (parent, text) => {
  if (text.length <= shown * 2) {
    parent.append(text)
    return
  }
  let at = cutAt(text, 0, shown)
  parent.append(make("div", "part", text.slice(0, at)))
  const more = button(`Show all ${count(text.length)}`, async () => {
    more.disabled = true
    while (at < text.length) {
      const end = cutAt(text, at, piece)
      more.before(make("div", "part", text.slice(at, end)))
      at = end
      await breathe()
    }
    more.remove()
  }, "more")
  parent.append(more)
}

const json = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? ""

/** Returns a value on one line, for which only its beginning is read. */
const brief = (value, most = 160) => {
  let left = most
  const write = (each) => {
    if (left <= 0) return ""
    let text
    if (typeof each === "string") text = JSON.stringify(each.slice(0, left))
    else if (Array.isArray(each)) text = listed(each, (item) => write(item), "[", "]")
    else if (typeof each === "object" && each !== null) {
      text = listed(Object.keys(each), (key) => `${key}: ${write(each[key])}`, "", "")
    } else text = String(each)
    left -= text.length
    return text
  }
  const listed = (items, one, open, close) => {
    const texts = []
    for (const item of items) {
      if (left <= 0) break
      texts.push(one(item))
    }
    return `${open}${texts.join(", ")}${close}`
  }
  return write(value).slice(0, most)
}

/** Returns the content of an answer as a text. */
const contentText = (content) => {
  if (typeof content === "string") {
    // An answer that is JSON is shown in lines, unless it is large.
    if (content.length < 20_000 && /^\s*[[{]/.test(content)) {
      try {
        return json(JSON.parse(content))
      } catch {
        return content
      }
    }
    return content
  }
  if (!Array.isArray(content)) return json(content)
  return content.map((part) =>
    part?.type === "text" ? String(part.text) : `[${part?.type ?? "part"} ${part?.mediaType ?? part?.filename ?? ""}]`
  ).join("\n")
}

const elapsed = (millis) => {
  const seconds = Math.max(0, millis) / 1000
  if (seconds < 10) return `${seconds.toFixed(1)} s`
  return seconds < 60 ? `${Math.floor(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`
}

// Calls.

/** Milliseconds by which the clock of the server is ahead of this one. */
let skew = 0

/** The calls that run now, whose time is shown. */
const running = new Set()

setInterval(() => {
  for (const call of running) call.tick()
}, 200)

const reasons = { permit: "waits for a permit", key: "waits for its key", exclusive: "waits for other calls" }

class Call {
  constructor(id, name) {
    this.id = id
    this.name = name
    this.startedAt = undefined
    this.argued = 0
    this.brief = make("span", "brief")
    this.state = make("span", "state")
    this.body = make("div", "body")
    this.args = make("pre")
    this.note = make("div", "note")
    this.note.hidden = true
    this.root = make("details", "call", make("summary", "", make("span", "name", name), this.brief, this.state))
    this.root.append(this.body)
    this.frame = make("div", "", this.root)
    this.frame.append(this.note)
    this.to("asked", "asked for")
  }

  to(state, text) {
    this.root.dataset.state = state
    this.state.textContent = text
    if (state !== "running") running.delete(this)
  }

  get isOpen() {
    return ["asked", "queued", "running", "waiting"].includes(this.root.dataset.state)
  }

  argue(delta) {
    if (this.argued < shown) this.section("Arguments", this.args).append(delta.slice(0, shown - this.argued))
    this.argued += delta.length
  }

  section(title, content) {
    if (!content.isConnected && content.parentNode === null) this.body.append(make("h3", "", title), content)
    return content
  }

  arguments(value, lost) {
    if (value !== undefined) this.brief.textContent = brief(value)
    const text = lost?.text ?? (value === undefined ? "" : json(value))
    if (text === "" || text === "{}") return
    this.args.replaceChildren()
    long(this.section(lost === undefined ? "Arguments" : `Arguments (${lost.reason})`, this.args), text)
  }

  start(at, attempt) {
    this.startedAt = at
    this.attempt = attempt
    this.to("running", "running")
    running.add(this)
    this.tick()
  }

  get trial() {
    return this.attempt === undefined ? "" : `, attempt ${this.attempt}`
  }

  tick() {
    this.state.textContent = `running ${elapsed(Date.now() + skew - this.startedAt)}${this.trial}`
  }

  progress(value) {
    this.note.hidden = false
    this.note.textContent = typeof value === "string" ? value.slice(0, 400) : brief(value, 400)
  }

  get nested() {
    if (this.inner === undefined) {
      this.inner = new Run(this.id, true)
      this.inner.root.classList.add("nested")
      this.frame.append(this.inner.root)
    }
    return this.inner
  }

  ended(at) {
    if (this.startedAt !== undefined) this.took ??= elapsed(at - this.startedAt)
  }

  answer(content, { at, code, isError, length }) {
    this.ended(at)
    const time = this.took === undefined ? "" : ` ${this.took}`
    if (code === "denied") this.to("denied", "denied")
    else if (isError && (code === "cancelled" || code === "aborted")) this.to("stopped", `stopped${time}`)
    else if (isError) this.to("error", `error${time}`)
    else this.to("done", `done${time}`)
    this.inner?.settle("stopped")
    if (content === undefined) return
    const text = contentText(content)
    if (isError) {
      let sentence = text
      try {
        sentence = String(JSON.parse(text).error ?? text)
      } catch {
        // The text of an error may be any text.
      }
      this.progress(sentence)
    } else this.note.hidden = true
    this.result?.replaceChildren()
    this.result ??= make("pre")
    long(this.section(isError ? "Error" : "Answer", this.result), text)
    if (length !== undefined) {
      this.body.append(make("h3", "", `The whole answer had ${count(length)}; the model read this part.`))
    }
  }

  settle(state) {
    if (this.isOpen) this.to(state, state)
    this.inner?.settle(state)
  }
}

// Runs.

class Run {
  constructor(runId, isNested = false) {
    this.runId = runId
    this.isNested = isNested
    this.root = make("div", "run")
    this.calls = new Map()
    this.begin()
  }

  /** Begins a reply: what belongs to it can be discarded. */
  begin() {
    this.close()
    this.step = []
    this.replyText = ""
    this.said = ""
  }

  close() {
    this.text = undefined
    this.thought = undefined
  }

  add(element) {
    this.root.append(element)
    this.step.push(element)
    return element
  }

  speak(delta) {
    if (delta === "") return
    this.thought = undefined
    if (this.replyText.length < 2_000) this.replyText += delta.slice(0, 2_000)
    if (this.text === undefined) {
      this.text = document.createTextNode("")
      this.block = this.add(make("div", "say", this.text))
    }
    if (delta.length > piece) {
      long(this.block, delta)
      this.text = document.createTextNode("")
      this.block.append(this.text)
      return
    }
    // A node that grows without a bound takes longer to lay out with each delta.
    if (this.text.length > piece) {
      this.text = document.createTextNode("")
      this.block.append(make("div", "part", this.text))
    }
    this.text.appendData(delta)
  }

  think(delta) {
    this.text = undefined
    if (this.thought === undefined) {
      this.thought = make("div")
      this.add(make("details", "think", make("summary", "", "Reasoning"), this.thought))
    }
    if (delta.length > piece) long(this.thought, delta)
    else this.thought.append(delta)
  }

  call(id, name) {
    const known = this.calls.get(id)
    if (known !== undefined) return known
    const call = new Call(id, String(name ?? "call"))
    this.close()
    this.calls.set(id, call)
    this.add(call.frame)
    return call
  }

  /** Returns the call that a reply asks for. A later reply may ask for another one by the id of one that is answered. */
  announce(call, name) {
    if (call.isOpen || this.step.includes(call.frame)) return call
    this.calls.delete(call.id)
    return this.call(call.id, name)
  }

  mark(text, isBad = false) {
    const element = make("div", isBad ? "mark bad" : "mark", text)
    element.dataset.kind = isBad ? "error" : "note"
    this.root.append(element)
    return element
  }

  settle(state) {
    for (const call of this.calls.values()) call.settle(state)
  }

  push(event, find = (id, name) => this.call(id, name)) {
    const at = event.at ?? Date.now() + skew
    switch (event._tag) {
      case "MessageStarted":
        return this.begin()
      case "StepReset":
        for (const element of this.step) element.remove()
        for (const [id, { frame }] of this.calls) if (this.step.includes(frame)) this.calls.delete(id)
        this.begin()
        if (event.error.code !== "resumed") this.mark(`${event.error.message} The reply begins again.`)
        return
      case "TextDelta":
        this.said += event.delta
        return this.speak(event.delta)
      case "TextCompleted":
        // The pieces may have been left out, or some of them.
        if (event.text.startsWith(this.said)) this.speak(event.text.slice(this.said.length))
        this.said = ""
        return this.close()
      case "ReasoningDelta":
        return this.think(event.delta)
      case "MessageCompleted":
        return this.close()
      case "ToolCallStarted":
        return void this.announce(find(event.id, event.name), event.name)
      case "ToolCallDelta":
        return find(event.id).argue(event.argumentsDelta)
      case "ToolCallCompleted":
        return this.announce(find(event.id, event.name), event.name).arguments(event.arguments, event.argumentsLost)
      case "ToolQueued":
        return find(event.id, event.name).to(
          "queued",
          event.key === undefined ? reasons[event.reason] ?? "waits" : `waits for ${event.key}`
        )
      case "ToolExecutionStarted":
        return find(event.id, event.name).start(at, event.attempt)
      case "ToolProgress": {
        const call = find(event.id, event.name)
        return event.nested === undefined ? call.progress(event.progress) : call.nested.push(event.nested)
      }
      case "ToolExecutionCompleted":
        return find(event.id, event.name).ended(at)
      case "ToolResultEncoded":
        return find(event.id).answer(event.content, {
          at,
          code: event.code,
          isError: event.isError === true,
          length: event.originalLength
        })
      case "ToolHalt":
        return find(event.toolCallId).answer(event.content, { at, isError: event.isError === true })
      case "AskUserRequested":
      case "ToolApprovalRequested":
      case "ToolSuspended":
        return find(event.toolCallId, event.toolName).to("waiting", "waits for an answer")
      case "Error":
        return void this.mark(event.error.message, true)
      case "ChatCompleted":
        this.close()
        if (event.suspensions === undefined) this.settle("stopped")
        return
      default:
        return
    }
  }
}

// Messages of the past.

/** Says that a rule ended a run. */
const endedBy = (rule) => `The run was ended by the rule "${rule}".`

const userText = (content) =>
  typeof content === "string"
    ? content
    : content.map((part) => part.type === "text" ? part.text : `[${part.filename ?? part.mediaType ?? part.type}]`)
      .join("\n")

const userBubble = (text) => {
  const element = make("div", "user")
  long(element, text)
  return element
}

/** Returns the parts of a message without its last steps, which come as events. */
const withoutSteps = (parts, steps) => {
  let end = parts.length
  for (let left = steps; left > 0; left--) end = parts.slice(0, end).findLastIndex(({ type }) => type === "step-start")
  return parts.slice(0, Math.max(0, end))
}

const past = (run, parts) => {
  for (const part of parts) {
    switch (part.type) {
      case "step-start":
        run.begin()
        break
      case "text":
        run.speak(String(part.text ?? ""))
        run.close()
        break
      case "reasoning":
        run.think(String(part.text ?? ""))
        run.close()
        break
      case "dynamic-tool": {
        const call = run.announce(run.call(part.toolCallId, part.toolName), part.toolName)
        call.arguments(part.input)
        if (part.state === "output-available") call.answer(part.output, { isError: false })
        else if (part.state === "output-error") call.answer(part.errorText, { isError: true })
        else if (part.state === "output-denied") call.answer(part.approval?.reason, { isError: true, code: "denied" })
        else call.to("waiting", "waits for an answer")
        break
      }
      default:
        break
    }
  }
  run.close()
}

// Sessions.

let agents = []
let agent
/** The session that is shown. */
let current
/** The place in the list behind the sessions that are shown. */
let older = ""

const pathOf = (name, id, rest = "") =>
  `/agents/${encodeURIComponent(name)}/sessions${id === undefined ? "" : `/${encodeURIComponent(id)}`}${rest}`

const log = $("log")

/** Tells whether the end of the conversation is in view. */
let isAtEnd = true
log.addEventListener("scroll", () => {
  isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80
})
new ResizeObserver(() => {
  if (isAtEnd) log.scrollTop = log.scrollHeight
}).observe(log)

/** Keeps the end in view, if it was. */
const growing = (change) => {
  const result = change()
  if (isAtEnd) log.scrollTop = log.scrollHeight
  return result
}

class Chat {
  constructor(name, id, isNew) {
    this.agent = name
    this.id = id
    this.isNew = isNew
    this.abort = new AbortController()
    this.runs = new Map()
    this.asks = new Map()
    this.users = 0
    this.running = undefined
    this.lastId = undefined
    this.sent = false
    /** The last request to delete the session. */
    this.deletion = undefined
  }

  path(rest) {
    return pathOf(this.agent, this.id, rest)
  }

  get isShown() {
    return current === this
  }

  clear() {
    log.replaceChildren()
    this.runs.clear()
    this.users = 0
    running.clear()
  }

  addUser(text) {
    this.users++
    log.querySelector(".empty")?.remove()
    return growing(() => log.appendChild(userBubble(text)))
  }

  run(runId) {
    const known = this.runs.get(runId)
    if (known !== undefined) return known
    const run = new Run(runId)
    this.runs.set(runId, run)
    log.append(run.root)
    return run
  }

  /** Finds a call of any run: an answer may come in the run after the one that asked for it. */
  find(run, id, name) {
    if (run.calls.has(id)) return run.calls.get(id)
    if (name === undefined) {
      for (const other of Array.from(this.runs.values()).toReversed()) {
        if (other.calls.has(id)) return other.calls.get(id)
      }
    }
    const asked = Array.from(this.runs.values()).findLast((other) => other.calls.get(id)?.isOpen)
    return asked?.calls.get(id) ?? run.call(id, name)
  }

  work(runId) {
    this.running = runId
    log.querySelector(".working")?.remove()
    if (runId !== undefined) log.append(make("div", "working", "working"))
    compose()
  }

  /** Shows the session as the server has it. The open run comes as events. */
  async load() {
    const response = await request("GET", this.path(""), { signal: this.abort.signal })
    if (!response.ok) {
      notice(await refusal(response))
      return
    }
    const session = await response.json()
    if (!this.isShown) return
    this.clear()
    this.lastRunId = session.runId === session.lastRunId ? undefined : session.lastRunId
    const messages = session.open === undefined ? session.messages : [...session.messages, session.open]
    const last = messages.length - 1
    for (const [index, message] of messages.entries()) {
      if (message.role === "user") {
        this.addUser(
          message.parts.map((part) =>
            part.type === "text" ? part.text : `[${part.filename ?? part.mediaType ?? "file"}]`
          ).join("\n")
        )
        continue
      }
      const isOpen = index === last && session.open !== undefined
      const run = this.run(`past ${index}`)
      past(run, isOpen ? withoutSteps(message.parts, session.wholeSteps ?? 0) : message.parts)
      await breathe()
    }
    for (const { content } of session.submitted) this.addUser(userText(content))
    this.ask(session.suspensions)
    const isBroken = session.status === "error"
    if (session.runId === undefined) {
      if (session.endedBy !== undefined) {
        log.append(make("div", isBroken ? "mark bad" : "mark", endedBy(session.endedBy)))
      } else if (isBroken) this.broken("The last run failed.")
    }
    if (messages.length === 0 && session.submitted.length === 0) empty()
    $("title").textContent = titleOf(this)
    this.work(session.runId)
    log.scrollTop = log.scrollHeight
  }

  /** Follows the session until another one is shown, over broken connections. */
  async follow() {
    let wait = 500
    while (this.isShown) {
      try {
        const response = await request("GET", this.path("/events"), {
          signal: this.abort.signal,
          headers: this.lastId === undefined ? {} : { "last-event-id": this.lastId }
        })
        if (response.status === 404) return notice("This session does not exist any more.")
        if (response.status === 400 && this.lastId === undefined) return notice(await refusal(response))
        if (response.status === 400) this.lastId = undefined
        if (!response.ok) throw new Error(await refusal(response))
        const behind = Date.parse(response.headers.get("date") ?? "") - Date.now()
        skew = Math.abs(behind) > 2_000 ? behind : 0
        if (this.lastId === undefined) await this.load()
        notice("")
        wait = 500
        for await (const frame of frames(response)) {
          if (!this.isShown) return
          await this.take(frame)
        }
        // A deletion by this page may end the stream before it is answered. The session is then not asked for.
        await this.deletion
        if (!this.isShown) return
        const exists = await request("GET", this.path(""), { signal: this.abort.signal })
        if (exists.status === 404) return notice("This session does not exist any more.")
      } catch (error) {
        if (!this.isShown) return
        notice(`The connection is broken, and is tried again${error instanceof TypeError ? "" : `: ${error.message}`}.`)
      }
      await pause(wait)
      await this.deletion
      wait = Math.min(wait * 2, 10_000)
    }
  }

  async take({ data, event: kind, id }) {
    const event = JSON.parse(data)
    // A large frame took its time already.
    if (data.length > 200_000) await breathe()
    if (id !== undefined) this.lastId = id
    if (kind === "reset") {
      this.runs.get(event.runId)?.root.remove()
      this.runs.delete(event.runId)
      return
    }
    if (event._tag === "RunStarted") {
      this.isSkipped = event.runId === this.lastRunId
      if (this.isSkipped) return
      this.lastRunId = undefined
      if (!this.sent && !this.runs.has(event.runId) && this.running !== event.runId) await this.missed()
      this.sent = false
      this.open = event.runId
      growing(() => this.run(event.runId))
      this.work(event.runId)
      say("The agent works.")
      return
    }
    if (this.isSkipped || this.open === undefined) return
    const run = this.run(this.open)
    growing(() => {
      run.push(event, (id, name) => this.find(run, id, name))
      // The mark of the work stays behind everything.
      const mark = log.querySelector(".working")
      if (mark !== null && mark !== log.lastElementChild) log.append(mark)
    })
    switch (event._tag) {
      case "ToolExecutionStarted":
        return say(`${event.name} runs.`)
      case "AskUserRequested":
      case "ToolApprovalRequested":
      case "ToolSuspended":
        return this.ask([...this.asks.values()].map(({ suspension }) => suspension).concat(event.suspensions))
      case "MessageCompleted":
        // The text is read out when it is whole, and not delta by delta.
        if (run.replyText !== "") say(run.replyText.slice(0, 1_000))
        return
      case "ChatCompleted":
        return this.completed(run, event)
      default:
        return
    }
  }

  /** Shows the messages that another client has sent. */
  async missed() {
    const response = await request("GET", this.path(""), { signal: this.abort.signal })
    if (!response.ok) return
    const { messages, submitted } = await response.json()
    const said = messages.filter(({ role }) => role === "user").map(({ parts }) =>
      parts.map((part) => part.text ?? "").join("\n")
    )
    for (const text of [...said, ...submitted.map(({ content }) => userText(content))].slice(this.users)) {
      this.addUser(text)
    }
  }

  completed(run, { outcome, suspensions = [] }) {
    this.work(undefined)
    this.ask(suspensions)
    growing(() => {
      switch (outcome._tag) {
        case "Failed":
          for (const mark of run.root.querySelectorAll(":scope > .mark.bad")) mark.remove()
          return this.broken(outcome.error?.message ?? "The run failed.")
        case "MaxTurns":
          return run.mark(`The run ended after ${outcome.maxTurns ?? "its"} turns.`)
        case "ToolFailed":
          return run.mark("The run ended because a call failed.", true)
        case "RuleEnded":
          return run.mark(endedBy(outcome.rule), outcome.status === "error")
        case "Halted":
        case "HaltWhen":
          return run.mark("The run was ended before the model had finished.")
        case "Cancelled":
          return run.mark(
            outcome.reason === "stop" || outcome.reason === undefined ? "Stopped." : `Stopped: ${outcome.reason}.`
          )
        default:
          return undefined
      }
    })
    if (outcome._tag === "Completed") compose()
    list(false)
  }

  /** Shows that something broke, and offers to try it again. */
  broken(text) {
    const element = make("div", "mark bad", text)
    const retry = button("Try again", async () => {
      retry.disabled = true
      this.sent = true
      const taken = await attempt("POST", this.path("/resume?wait=false"))
      if (taken === undefined) retry.disabled = false
      else element.remove()
    })
    element.append(retry)
    log.append(element)
    say(text)
  }

  ask(suspensions) {
    const wanted = new Map(suspensions.map((suspension) => [suspension.id, suspension]))
    for (const [id, { root }] of this.asks) {
      if (wanted.has(id)) continue
      root.remove()
      this.asks.delete(id)
    }
    let first
    for (const [id, suspension] of wanted) {
      if (this.asks.has(id)) continue
      const root = askForm(this, suspension)
      this.asks.set(id, { root, suspension })
      $("asks").append(root)
      first ??= root
    }
    if (first !== undefined) {
      say(`The agent asks: ${first.querySelector("h2").textContent}`)
      const { activeElement } = document
      // A person who types is not taken away from the text. What decides about a call never has the focus at once.
      const isFree = activeElement === null || activeElement === document.body ||
        activeElement === $("text") && $("text").value === ""
      const target = first.dataset.kind === "approval" || first.dataset.kind === "unknown"
        ? "h2"
        : "textarea, .row button"
      if (isFree) first.querySelector(target)?.focus()
      log.scrollTop = log.scrollHeight
    }
    compose()
  }

  async answer(id, body) {
    this.sent = true
    const response = await request("POST", this.path("/answers?wait=false"), { body: { answers: [{ id, ...body }] } })
      .catch(() => undefined)
    if (response === undefined) return "The server cannot be reached."
    if (!response.ok) return await refusal(response)
    const { root, suspension } = this.asks.get(id) ?? {}
    root?.remove()
    this.asks.delete(id)
    // The session keeps the answer to a question as what the user said.
    if (suspension?.kind === "question") {
      growing(() => log.append(make("div", "run", make("div", "say", suspension.question ?? ""))))
      this.addUser(contentText(body.value))
    }
    if (this.asks.size === 0) $("text").focus()
    compose()
  }

  async stop() {
    if (this.running === undefined || this.isStopping) return
    this.isStopping = true
    compose()
    say("Stopping.")
    const response = await attempt("POST", this.path("/stop"))
    if (response !== undefined) {
      for await (const { data, event } of frames(response)) if (event === "ended") this.report(JSON.parse(data))
    }
    this.isStopping = false
    compose()
  }

  /** Shows what became of the calls of a run that was stopped. */
  report({ ended = [], refused = [], stopped = [], unknown = [] }) {
    const nameOf = (id) =>
      Array.from(this.runs.values()).findLast(({ calls }) => calls.has(id))?.calls.get(id).name ?? id
    const line = (title, ids) => ids.length === 0 ? [] : [`${title}: ${ids.map(nameOf).join(", ")}.`]
    const text = [
      ...line("Stopped", stopped),
      ...line("Ended before", ended),
      ...line("Refused to stop, and may still have an effect", refused),
      ...line("Unknown", unknown)
    ].join(" ")
    say(`Stopped. ${text}`)
    if (text === "") return
    growing(() =>
      log.append(make("div", refused.length + unknown.length > 0 ? "mark bad report" : "mark report", text))
    )
  }
}

// Questions.

const typeOf = (schema) => {
  if (typeof schema !== "object" || schema === null) return undefined
  return typeof schema.type === "string" ? schema.type : undefined
}

const expected = (schema) => {
  const type = typeOf(schema)
  if (Array.isArray(schema.enum)) return `one of ${brief(schema.enum, 300)}`
  if (type === "string") return schema.description ?? "a text"
  if (type === "integer" || type === "number") {
    return `a number${schema.description === undefined ? "" : `: ${schema.description}`}`
  }
  if (type === "boolean") return "true or false"
  return `JSON: ${brief(schema.properties ?? schema, 400)}`
}

const autoGrow = (area) => {
  area.rows = Math.min(12, Math.max(1, area.value.split("\n", 13).length))
}

const field = (labelText, area) => {
  area.id = `field-${newId()}`
  const label = make("label", "", labelText)
  label.htmlFor = area.id
  return [label, area]
}

const askForm = (chat, suspension) => {
  const { answerSchema, expiresAt, id, kind, opts = [], question, toolCall } = suspension
  const root = make("form", "ask")
  const wrong = make("p", "wrong")
  wrong.setAttribute("role", "alert")
  wrong.hidden = true
  const isCall = kind === "approval" || kind === "unknown" || kind === "manual"
  root.dataset.kind = kind
  const heading = make("h2")
  heading.tabIndex = -1
  if (question !== undefined) long(heading, question)
  else heading.append(kind === "manual" ? "This call needs its result from you." : "May this call run?")
  root.append(heading)
  root.setAttribute("aria-label", kind === "question" ? "Question" : `${kind} of ${toolCall.name}`)
  if (isCall) root.append(make("div", "tool", toolCall.name))

  const send = async (body) => {
    wrong.hidden = true
    for (const element of root.querySelectorAll("button")) element.disabled = true
    const refused = await chat.answer(id, body)
    if (refused === undefined) return
    for (const element of root.querySelectorAll("button")) element.disabled = false
    wrong.textContent = refused
    wrong.hidden = false
  }
  const refuse = (text) => {
    wrong.textContent = text
    wrong.hidden = false
  }
  const row = make("div", "row")

  if (kind === "approval" || kind === "unknown") {
    const text = toolCall.arguments === undefined ? undefined : json(toolCall.arguments)
    let area
    if (text !== undefined && (kind === "unknown" || text.length > 20_000)) {
      const pre = make("pre")
      long(pre, text)
      root.append(pre)
    } else if (text !== undefined) {
      area = make("textarea")
      area.value = text
      area.spellcheck = false
      autoGrow(area)
      area.addEventListener("input", () => autoGrow(area))
      root.append(...field("Arguments", area))
    }
    const reason = make("input")
    reason.type = "text"
    root.append(...field("Reason, if denied", reason))
    root.addEventListener("submit", (event) => {
      event.preventDefault()
      if (area === undefined || area.value.trim() === text.trim()) return send({ approve: true })
      try {
        const edited = JSON.parse(area.value)
        if (typeof edited !== "object" || edited === null || Array.isArray(edited)) {
          return refuse("The arguments are a JSON object.")
        }
        send({ approve: true, arguments: edited })
      } catch (error) {
        refuse(`The arguments are not JSON: ${error.message}`)
      }
    })
    row.append(
      make("button", "main", kind === "approval" ? "Allow" : "Run again"),
      button("Deny", () => {
        const given = reason.value.trim()
        send(given === "" ? { approve: false } : { approve: false, reason: given })
      }, "deny")
    )
  } else if (opts.length > 0) {
    root.addEventListener("submit", (event) => event.preventDefault())
    for (const option of opts) {
      row.append(
        button(typeof option === "string" ? option.slice(0, 300) : brief(option), () => send({ value: option }))
      )
    }
  } else {
    const area = make("textarea")
    area.rows = 1
    area.addEventListener("input", () => autoGrow(area))
    area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
      event.preventDefault()
      root.requestSubmit()
    })
    if (kind === "manual" && toolCall.arguments !== undefined) {
      const pre = make("pre")
      long(pre, json(toolCall.arguments))
      root.append(pre)
    }
    root.append(...field(kind === "manual" ? "Result" : "Answer", area))
    if (answerSchema !== undefined) root.append(make("p", "expected", `Expected: ${expected(answerSchema)}`))
    const isText = answerSchema === undefined ? kind === "question" : typeOf(answerSchema) === "string"
    root.addEventListener("submit", (event) => {
      event.preventDefault()
      const typed = area.value
      if (typed.trim() === "") return refuse("The answer is empty.")
      if (isText) return send({ value: typed })
      try {
        send({ value: JSON.parse(typed) })
      } catch (error) {
        if (answerSchema === undefined) send({ value: typed })
        else refuse(`The answer is not JSON: ${error.message}`)
      }
    })
    row.append(make("button", "main", "Answer"))
  }
  root.append(row, wrong)
  if (expiresAt !== undefined) root.append(make("p", "expected", `Until ${new Date(expiresAt).toLocaleString()}`))
  return root
}

// The parts of the page around the conversation.

const compose = () => {
  const isRunning = current?.running !== undefined
  const isAsked = (current?.asks.size ?? 0) > 0
  $("send").hidden = isRunning
  $("send").disabled = isAsked
  $("stop").hidden = !isRunning
  $("stop").disabled = current?.isStopping === true
  $("delete").hidden = current === undefined || current.isNew || isRunning
  $("text").placeholder = isAsked ? "Answer first what the agent asks" : isRunning ? "The agent works" : "Message"
}

const titleOf = ({ agent, id }) => {
  const item = Array.from($("sessions").children).find((child) => child.dataset.id === id)
  return item?.querySelector(".name").textContent || agent
}

const empty = () => {
  const { description = "", name = "" } = agents.find(({ name }) => name === agent) ?? {}
  log.replaceChildren(make("p", "empty", `${name}${description === "" ? "" : `: ${description}`}`))
}

/** Shows a session, or a new one. */
const open = (name, id) => {
  current?.abort.abort()
  running.clear()
  $("asks").replaceChildren()
  notice("")
  confirmDelete(false)
  current = new Chat(name, id ?? newId(), id === undefined)
  history.replaceState(
    null,
    "",
    id === undefined ? location.pathname : `#${encodeURIComponent(name)}/${encodeURIComponent(id)}`
  )
  for (const item of $("sessions").children) {
    item.firstElementChild.setAttribute("aria-current", String(item.dataset.id === id))
  }
  $("title").textContent = id === undefined ? name : titleOf(current)
  log.replaceChildren()
  toggleMenu(false)
  if (id === undefined) empty()
  else current.follow()
  compose()
}

const when = (millis) => {
  const date = new Date(millis)
  const isToday = date.toDateString() === new Date().toDateString()
  return isToday ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleDateString()
}

const states = { resume: "runs", reply: "runs", continue: "runs", wait: "waits" }

const sessionItem = ({ agent, id, next, title, updatedAt }) => {
  const entry = button("", () => open(agent, id))
  const state = states[next]
  entry.append(make("span", "name", title || id), make("span", "when", when(updatedAt)))
  if (state !== undefined) entry.append(make("span", `state ${state}`, state === "waits" ? "waits for you" : "works"))
  entry.setAttribute("aria-current", String(current?.id === id))
  const item = make("li", "", entry)
  item.dataset.id = id
  return item
}

/** Lists sessions: the newest ones, or one page more. */
const list = async (isMore) => {
  const name = agent
  const wanted = isMore ? older : ""
  const response = await request("GET", `${pathOf(name)}?next=${wanted}`).catch(() => undefined)
  if (response === undefined || !response.ok || name !== agent) return
  const { next, sessions } = await response.json()
  older = next
  if (isMore) $("sessions").append(...sessions.map(sessionItem))
  else $("sessions").replaceChildren(...sessions.map(sessionItem))
  $("older").hidden = next === undefined
  if (current !== undefined && !current.isNew) $("title").textContent = titleOf(current)
}

const send = async () => {
  const area = $("text")
  const text = area.value
  if (text.trim() === "" || current === undefined || $("send").disabled || current.running !== undefined) return
  const chat = current
  const bubble = chat.addUser(text)
  area.value = ""
  $("send").disabled = true
  chat.sent = true
  const taken = await attempt("POST", chat.path("/messages?wait=false"), { body: { content: text, id: newId() } })
  if (!chat.isShown) return
  compose()
  if (taken === undefined) {
    bubble.remove()
    chat.users--
    if (area.value === "") area.value = text
    return
  }
  log.scrollTop = log.scrollHeight
  if (!chat.isNew) return
  chat.isNew = false
  history.replaceState(null, "", `#${encodeURIComponent(chat.agent)}/${encodeURIComponent(chat.id)}`)
  chat.follow()
  list(false)
}

const toggleMenu = (isOpen) => {
  $("side").classList.toggle("open", isOpen)
  $("menu").setAttribute("aria-expanded", String(isOpen))
}

const confirmDelete = (isAsked) => {
  $("delete").textContent = isAsked ? "Really delete?" : "Delete"
  $("delete").dataset.asked = String(isAsked)
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault()
  send()
})
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return
  event.preventDefault()
  send()
})
$("stop").addEventListener("click", () => current?.stop())
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return
  if ($("side").classList.contains("open")) {
    toggleMenu(false)
    $("menu").focus()
  } else if (current?.running !== undefined) current.stop()
})
$("menu").addEventListener("click", () => toggleMenu(!$("side").classList.contains("open")))
$("new").addEventListener("click", () => {
  open(agent)
  $("text").focus()
})
$("older").addEventListener("click", () => list(true))
$("agents").addEventListener("change", () => {
  choose($("agents").value)
  open(agent)
})
$("delete").addEventListener("click", async () => {
  if ($("delete").dataset.asked !== "true") {
    confirmDelete(true)
    return
  }
  confirmDelete(false)
  const chat = current
  if (chat === undefined) return
  chat.deletion = attempt("DELETE", chat.path(""))
  if ((await chat.deletion) === undefined) return
  if (chat.isShown) open(agent)
  list(false)
})
$("delete").addEventListener("blur", () => confirmDelete(false))

const choose = (name) => {
  agent = name
  $("agents").value = name
  $("description").textContent = agents.find((each) => each.name === name)?.description ?? ""
  $("sessions").replaceChildren()
  list(false)
}

const start = async () => {
  const response = await request("GET", "/agents").catch(() => undefined)
  if (response === undefined || !response.ok) {
    notice(response === undefined ? "The server cannot be reached. Load the page again." : await refusal(response))
    return
  }
  agents = (await response.json()).agents
  const isOne = agents.length === 1
  $("agents").hidden = isOne
  $("agentLabel").hidden = isOne
  $("agents").replaceChildren(...agents.map(({ name }) => {
    const option = make("option", "", name)
    option.value = name
    return option
  }))
  const [name, id] = location.hash.slice(1).split("/")
  const known = agents.find((each) => each.name === name)
  choose(known?.name ?? agents[0]?.name)
  open(agent, known === undefined || id === "" ? undefined : id)
  $("text").focus()
}

start()
