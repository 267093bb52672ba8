/**
 * An agent that answers a question about a folder of files: `npm start -- "Where are tool timeouts enforced?"`. It is
 * Heddle's main example: real tools that start while the model still speaks, a real adapter, a view of what runs while it
 * runs, and Ctrl-C stops everything. Without a key it runs on an embedded model, which is no language model and says so.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Argument from "effect/cli/Argument"
import * as CliOutput from "effect/cli/CliOutput"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Prompt from "effect/cli/Prompt"
import * as Clock from "effect/Clock"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Stdio from "effect/Stdio"
import * as Stream from "effect/Stream"
import { isQuitError } from "effect/Terminal"
import { type Budget, type Event, Journal, Response, type Session } from "heddle"
import { randomUUID } from "node:crypto"
import { createRequire } from "node:module"
import { homedir } from "node:os"
import { resolve } from "node:path"
import { runMain, Stop } from "../../src/command/internal/stop.ts"
import * as Adapter from "./adapter.ts"
import * as Failure from "./failure.ts"
import * as Interrupted from "./interrupted.ts"
import { system } from "./prompt.ts"
import * as Conversation from "./session.ts"
import * as Settings from "./settings.ts"
import * as Tools from "./tools.ts"
import * as Typed from "./typed.ts"
import * as Run from "./view/run.ts"
import * as Terminal from "./view/terminal.ts"
import * as Workspace from "./workspace.ts"

const repository = resolve(import.meta.dirname, "../..")
const defaultQuestion = "Where are tool timeouts enforced?"
const maxTurns = 12
/** How long a tool may take to stop. */
const grace = "2 seconds"

const stop = new Stop()

const titleOf = (model: Settings.Model): string =>
  model._tag === "Embedded"
    ? "the embedded model (rules, no language model)"
    : `${model.name} at ${Settings.address(model)}`

/** A line that has been begun and not entered. The end of a run does not take it away. */
interface Typing {
  draft: string
}

/** Takes what the user types while a run works. A line that has been entered is submitted, whatever ends the run. */
const listen = ({ kept }: Conversation.Turn, view: Terminal.View, typing: Typing) =>
  Effect.andThen(
    view.typing(typing.draft),
    Typed.read({
      begun: typing.draft,
      onDraft: (draft) => Effect.andThen(Effect.sync(() => typing.draft = draft), view.typing(draft)),
      onLine: (line) =>
        Effect.gen(function*() {
          const id = randomUUID()
          // Shown once it is kept: a kill from here on does not lose it.
          yield* Effect.matchEffect(Conversation.steer(kept, line, id), {
            onFailure: ({ message }) => view.settled(id, line, `refused: ${message}`),
            onSuccess: () => view.said(id, line)
          })
        }).pipe(Effect.uninterruptible),
      onStop: Effect.sync(() => process.kill(process.pid, "SIGINT"))
    })
  ).pipe(Effect.ensuring(Effect.ignore(view.typing(undefined))))

/** One run, shown as it goes. While it runs it can be stopped softly, and takes what the user types. */
const show = (turn: Conversation.Turn, budget: Budget.Budget, view: Terminal.View, typing: Typing) =>
  Effect.gen(function*() {
    yield* Effect.acquireRelease(Effect.sync(() => stop.enterSoft()), (leave) => Effect.sync(leave))
    yield* Effect.forkScoped(Effect.andThen(stop.requested, Effect.ignore(view.stopping)))
    yield* view.begin
    if (view.canType && (yield* isInteractive)) {
      yield* Effect.forkScoped(listen(turn, view, typing))
      yield* Effect.addFinalizer(() => Effect.ignore(view.typing(undefined)))
    }
    const options = { tools: Tools.all, system, maxTurns, grace, budget, cancel: stop.requested } as const
    yield* Stream.runForEach(Conversation.run(turn, options), view.onEvent)
    const { result } = yield* view.run
    return result ?? (yield* Effect.die(new Error("the run ended without a result")))
    // What the library would log is in the picture, and a line from elsewhere would tear it.
  }).pipe(Effect.provide(Logger.layer([])), Effect.scoped)

const isInteractive = Stdio.Stdio.use((stdio) =>
  Effect.zipWith(stdio.stdinIsTerminal, stdio.stdoutIsTerminal, (a, b) => a && b)
)

/**
 * Runs until there is an outcome. What a tool asks the user is asked in a terminal, and the conversation goes on; where
 * the user cannot be asked, the question waits for the next start.
 */
const converse = (request: Request, view: Terminal.View) =>
  Effect.gen(function*() {
    const canAsk = yield* isInteractive
    const usages: Array<Event.ChatResult["usage"]> = []
    let { turn } = request
    let { later } = turn
    let result: Event.ChatResult | undefined
    const typing: Typing = { draft: "" }
    while (true) {
      const isAsked = Conversation.questions(turn.kept).length > 0
      if (Conversation.isInterrupted(turn.kept) || !isAsked || turn.words !== undefined) {
        result = yield* show(turn, request.budget, view, typing)
        usages.push(result.usage)
        turn = { kept: yield* Conversation.reopen(turn.kept), words: undefined }
        const { words } = yield* view.run
        const isLast = request.place === undefined && !["Completed", "AskUser"].includes(result.outcome._tag)
        const reason = stop.code === undefined ? result.haltedReason : "stopped"
        for (const { id, text } of words) {
          yield* view.settled(id, text, Conversation.fate(turn.kept, id, isLast ? reason : undefined))
        }
      }
      const left = Conversation.left(turn.kept)
      if (left !== undefined && result?.outcome._tag === "Completed") {
        turn = left
        continue
      }
      const [question] = Conversation.questions(turn.kept)
      if (question === undefined && later !== undefined && result?.outcome._tag === "Completed") {
        turn = { ...turn, words: later }
        later = undefined
        continue
      }
      if (question === undefined || !canAsk) {
        return { result, question, later, draft: typing.draft.trim(), usage: Response.sumUsage(usages) }
      }
      yield* view.pause
      const reply: string = yield* Prompt.run(Prompt.String({ message: question.question ?? "" }))
      turn = yield* Conversation.take(turn.kept, reply)
    }
  })

/**
 * What a run that is interrupted leaves is shown at once, whatever its tools do about it, and so is one that the user
 * leaves instead of answering its question.
 */
const shownWhatever = <A, E, R>(run: Effect.Effect<A, E, R>, view: Terminal.View, unit: string) =>
  Effect.flatMap(Effect.forkChild(run), (fiber) =>
    Fiber.join(fiber).pipe(
      Effect.onInterrupt(() => Effect.ignore(view.interrupted(unit))),
      Effect.tapError((error) => {
        const isTaken = error instanceof Journal.SessionConflict || error instanceof Journal.SessionClaimed
        if (isTaken) return Effect.ignore(view.interrupted(unit))
        return isQuitError(error) ? Effect.ignore(view.finish(null, unit)) : Effect.void
      })
    ))

interface Request {
  readonly turn: Conversation.Turn
  readonly budget: Budget.Budget
  readonly place: Settings.Place | undefined
  readonly folder: string
  readonly model: Settings.Model
}

/** What an answer came to: whether it was stopped, and otherwise what stands in the way of a whole one, if anything does. */
interface Answered {
  readonly isStopped: boolean
  readonly problem: string | undefined
}

/** What is about to be done: where, by whom, what there is of a run that was interrupted, and what the user said last. */
const headline = ({ folder, model, place, turn }: Request, now: number): string => {
  const { interrupted } = turn.kept
  const session = place === undefined ? "" : ` · ${Conversation.standing(place, turn.kept)}`
  const asked = Conversation.questions(turn.kept).map(({ question }) => `\n? ${Run.harmless(question ?? "")}`).join("")
  const found = interrupted === undefined ? "" : `\n${Interrupted.lines(interrupted, now).join("\n")}`
  const said = turn.words === undefined ? "" : `\n> ${turn.words}`
  return `${folder} · ${titleOf(model)}${session}${found}${interrupted === undefined ? asked : ""}${said}`
}

/** Answers one question. */
const answer = (request: Request) =>
  Effect.gen(function*() {
    const { model } = request
    const unit = model._tag === "Embedded" ? "word" : "token"
    const view = yield* Terminal.make
    yield* view.headline(headline(request, yield* Clock.currentTimeMillis))
    const { draft, later, question, result, usage } = yield* shownWhatever(converse(request, view), view, unit)
    if (result !== undefined) yield* view.finish(usage, unit)
    const { unreadable } = yield* view.run
    if (question !== undefined) yield* Console.log(`It asks: ${Run.harmless(question.question ?? "")}`)
    if (later !== undefined) yield* Console.log(`Not said yet: ${later}`)
    if (draft !== "") yield* Console.log(`Not sent: ${Run.harmless(draft)}`)
    const isStopped = result?.outcome._tag === "Cancelled"
    const isGood = isStopped || result === undefined
    return { isStopped, problem: isGood ? undefined : Failure.ofResult(result, unreadable, model) } satisfies Answered
  }).pipe(Effect.scoped)

const askForQuestion = Effect.gen(function*() {
  if (!(yield* isInteractive)) return defaultQuestion
  yield* Console.log(`Ask about the files. Just enter asks: ${defaultQuestion}`)
  const typed = yield* Prompt.run(Prompt.String({ message: "Question" }))
  return typed.trim() === "" ? defaultQuestion : typed.trim()
})

/**
 * What to begin with. Without words it is what the last start left open, and a question only if it left nothing. A run that
 * was interrupted comes first.
 */
const turnFrom = (kept: Session.Claimed, words: ReadonlyArray<string>) =>
  Effect.gen(function*() {
    const said = words.join(" ").trim()
    const left = Conversation.left(kept)
    if (left !== undefined) return said === "" ? left : { ...left, later: said } satisfies Conversation.Turn
    if (said !== "") return yield* Conversation.take(kept, said)
    const isOpen = Conversation.isInterrupted(kept) || Conversation.questions(kept).length > 0 ||
      Conversation.isUnfinished(kept)
    return { kept, words: isOpen ? undefined : yield* askForQuestion } satisfies Conversation.Turn
  })

const complain = (line: string) => Effect.as(Console.error(`agent: ${line}`), 1)

/** What the command line takes. */
const parameters = {
  question: Argument.String("question").pipe(
    Argument.withDescription("What to find out; asked for, or a default, if left out"),
    Argument.variadic()
  ),
  dir: Flag.String("dir").pipe(
    Flag.withDescription("The folder to look in"),
    Flag.withDefault(repository)
  ),
  provider: Flag.String("provider").pipe(
    Flag.withDescription(
      `Whose model answers: ${Settings.choices.join(", ")}; by default the first whose key or address is set`
    ),
    Flag.optional
  ),
  model: Flag.String("model").pipe(
    Flag.withDescription("Which of the provider's models, or embedded"),
    Flag.optional
  ),
  notes: Flag.String("notes").pipe(
    Flag.withDescription("The folder to keep notes in, relative to --dir; without it they are shown, not written"),
    Flag.optional
  ),
  session: Flag.String("session").pipe(
    Flag.withDescription(
      "Keeps the conversation under this name, and goes on where it was; without it nothing is kept"
    ),
    Flag.optional
  ),
  budget: Flag.Int("budget").pipe(
    Flag.filter((tokens) => tokens >= 0, () => "a number of tokens, 0 or more"),
    Flag.withDescription("How many tokens an answer may take; its model is asked 24 times at most"),
    Flag.withDefault(Settings.budgetTokens)
  ),
  giveUp: Flag.Boolean("give-up").pipe(
    Flag.withDescription("Abandons a run that was interrupted, instead of resuming it"),
    Flag.withDefault(false)
  ),
  sessions: Flag.String("sessions").pipe(
    Flag.withDescription("The folder to keep sessions in; by default heddle-agent/sessions among the user's data"),
    Flag.optional
  )
}

/** The command line. Its result is the exit code. */
const command = (onExit: (code: number) => void) =>
  Command.make(
    "agent",
    parameters,
    ({ budget: tokens, dir, giveUp, model: named, notes, provider, question: words, session, sessions }) =>
      Effect.gen(function*() {
        const environment = yield* Settings.environment
        const model = yield* Settings.chooseModel(environment, { provider, model: named })
        const machine = yield* Settings.machine(process.platform, homedir())
        const place = yield* Settings.choosePlace(machine, { session, sessions })
        const workspace = Workspace.layer({ folder: dir, notes })
        const answered = yield* Effect.gen(function*() {
          const { root } = yield* Workspace.Workspace
          const kept = yield* Conversation.open(place)
          const turn = yield* turnFrom(giveUp ? yield* Conversation.givenUp(kept) : kept, words)
          return yield* answer({ turn, budget: Settings.budgetOf(tokens), place, folder: root, model }).pipe(
            Effect.provide(Adapter.layer(model))
          )
        }).pipe(
          Effect.scoped,
          Effect.provide(Conversation.layer(place)),
          Effect.provide(workspace),
          Effect.catch((error): Effect.Effect<Answered> =>
            isQuitError(error)
              ? Effect.andThen(Console.log(), Effect.interrupt)
              : Effect.succeed({ isStopped: false, problem: Failure.line(error, model) })
          )
        )
        if (answered.isStopped) onExit(stop.code ?? 1)
        else onExit(answered.problem === undefined ? 0 : yield* complain(answered.problem))
      })
  ).pipe(Command.withDescription("Answers a question about a folder of files."))

/** A wrong invocation gets one line; the help is there for the asking. */
const presenter = CliOutput.layerPresenter({
  present: (event) => event._tag === "InvalidInvocation" ? Effect.void : CliOutput.defaultPresenter.present(event)
})

const { version } = createRequire(import.meta.url)("heddle/package.json") as { readonly version: string }

// A reader that has gone away, such as `| head`, fails the next write; without a listener it would end the process.
process.stdout.on("error", () => {})

const program = Effect.gen(function*() {
  let code = 0
  yield* Command.run(command((own) => code = own), { version }).pipe(
    Effect.catch((error) => Effect.map(complain(Failure.line(error, { _tag: "Embedded" })), (own) => code = own))
  )
  return code
}).pipe(Effect.provide([NodeServices.layer, presenter]))

runMain(program, stop)
