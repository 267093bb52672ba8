/**
 * The `heddle` command line.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Argument from "effect/cli/Argument"
import * as CliError from "effect/cli/CliError"
import * as CliOutput from "effect/cli/CliOutput"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Console from "effect/Console"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import { isQuitError } from "effect/Terminal"
import { createRequire } from "node:module"
import { StringDecoder } from "node:string_decoder"
import * as Session from "../../Session.ts"
import * as Conversations from "./conversation.ts"
import * as Definitions from "./definition.ts"
import * as Stores from "./keeping.ts"
import * as Operating from "./operating.ts"
import * as Problems from "./problem.ts"
import * as Serves from "./serve.ts"
import { runMain, Stop } from "./stop.ts"

const { version } = createRequire(import.meta.url)("heddle/package.json") as { readonly version: string }

const moduleIs = "a file or package whose default export is Server.define({ agents, layer })"

const module = Argument.String("module").pipe(Argument.withDescription(`A${moduleIs.slice(1)}`))
const store = Flag.String("store").pipe(
  Flag.withDescription("The SQLite file of the sessions, created if missing; in memory by default"),
  Flag.optional
)
const isJson = Flag.Boolean("json").pipe(
  Flag.withDescription("Prints JSON on the standard output"),
  Flag.withDefault(false)
)
const principal = Flag.String("principal").pipe(
  Flag.withDescription("The principal whose sessions these are; local by default"),
  Flag.withDefault("local")
)

/** Tells whether a text is a valid claim term. */
const isTerm = (text: string): boolean =>
  Option.exists(Duration.fromInput(text as Duration.Input), (term) => {
    const millis = Duration.toMillis(term)
    return Number.isFinite(millis) && millis > 0
  })

const serve = (stop: Stop, onExit: (code: number) => void) =>
  Command.make(
    "serve",
    {
      module,
      port: Flag.Int("port").pipe(
        Flag.withDescription("The port; 3000 by default, 0 for any free port"),
        Flag.filter((port) => port >= 0 && port <= 65_535, () => "a port must be a number from 0 to 65535"),
        Flag.withDefault(3000)
      ),
      host: Flag.String("host").pipe(
        Flag.withDescription(
          "The address to listen on; 127.0.0.1 by default; one that other machines reach needs authorize in the module"
        ),
        Flag.withDefault("127.0.0.1")
      ),
      store,
      term: Flag.String("term").pipe(
        Flag.withDescription(
          "How long a killed process keeps its sessions, such as \"10 seconds\"; the module's term by default"
        ),
        Flag.filter(isTerm, () => "a term must be a duration longer than 0, such as \"10 seconds\""),
        Flag.optional
      ),
      isOpened: Flag.Boolean("open").pipe(
        Flag.withDescription("Opens the address in the browser"),
        Flag.withDefault(false)
      )
    },
    ({ host, isOpened, module, port, store, term }) =>
      Effect.map(
        Serves.run(
          { host, isOpened, module, port, store: Option.getOrUndefined(store), term: Option.getOrUndefined(term) },
          stop
        ),
        onExit
      )
  ).pipe(
    Command.withDescription("Serves a module's agents over HTTP, with Studio, the browser application.")
  )

const call = (stop: Stop, onExit: (code: number) => void) =>
  Command.make(
    "call",
    {
      module,
      text: Argument.String("text").pipe(
        Argument.withDescription(
          "The message, or - for the standard input; without a message, --session continues the session's open work"
        ),
        Argument.optional
      ),
      agent: Flag.String("agent").pipe(
        Flag.withDescription("The agent that answers; needed if the module has several"),
        Flag.optional
      ),
      session: Flag.String("session").pipe(
        Flag.withDescription("The session id, for continuing the session later; a new id by default"),
        Flag.optional
      ),
      store,
      principal,
      isJson
    },
    ({ agent, isJson, module, principal, session, store, text: given }) =>
      Effect.gen(function*() {
        const isRead = Option.contains(given, "-")
        const text = isRead ? Option.some(yield* standardInput) : given
        const said = Option.filter(text, (text) => text.trim() !== "")
        if (isRead && Option.isNone(said)) return yield* Problems.problem("the standard input has no text")
        if (Option.isNone(said) && Option.isNone(session)) {
          return yield* Problems.problem(
            "there is no text; give a text after the module, - for the standard input, or --session ID to continue a "
              + "session"
          )
        }
        const id = Option.getOrElse(session, () => globalThis.crypto.randomUUID())
        yield* Conversations.checkId(id)
        const loaded = yield* Definitions.load(module)
        const named = {
          id,
          principal,
          agent: yield* Definitions.agentOf(loaded, Option.getOrUndefined(agent)),
          isStored: Option.isSome(store)
        }
        if (Option.isSome(session) && Option.isNone(store)) {
          yield* Console.error(
            "heddle: the session is in memory and ends with this process; --store FILE keeps the session"
          )
        }
        const layer = Layer.merge(Definitions.layerOf(loaded), Stores.layer(Option.getOrUndefined(store)))
        onExit(
          yield* Effect.provide(
            Conversations.run(loaded, named, stop, { isJson, ...Option.isSome(said) ? { text: said.value } : {} }),
            layer
          )
        )
      })
  ).pipe(Command.withDescription("Sends one message to a module's agent, and prints the answer."))

/** Reads the standard input, up to the 1 MiB limit for a message. */
const standardInput: Effect.Effect<string, Problems.Problem> = Effect.callback((resume) => {
  const decoder = new StringDecoder("utf8")
  const most = 1_048_576
  let text = ""
  const end = (result: Effect.Effect<string, Problems.Problem>) => {
    process.stdin.removeAllListeners().pause()
    resume(result)
  }
  process.stdin.on("data", (chunk: Buffer) => {
    text += decoder.write(chunk)
    if (text.length > most) end(Problems.problem(`the standard input has more than ${most} characters`))
  })
  process.stdin.on("end", () => end(Effect.succeed(text + decoder.end())))
  process.stdin.on("error", (error) => end(Problems.problem(`the standard input: ${Problems.detailOf(error)}`)))
})

const actions = ["list", "show", "recover", "stop", "revoke", "delete"] as const

const sessions = (stop: Stop, onExit: (code: number) => void) =>
  Command.make(
    "sessions",
    {
      module,
      action: Argument.Literals("action", actions).pipe(Argument.withDescription(`The action: ${actions.join(", ")}`)),
      id: Argument.String("id").pipe(
        Argument.withDescription("The session id; not for list"),
        Argument.optional
      ),
      next: Flag.String("next").pipe(
        Flag.withDescription("The page of a list, as printed with the page before; the first page by default"),
        Flag.optional
      ),
      query: Flag.String("query").pipe(
        Flag.withDescription("A text in the title or last line of the listed sessions; all sessions by default"),
        Flag.optional
      ),
      status: Flag.Literals("status", Session.Status.literals).pipe(
        Flag.withDescription("The status of the listed sessions; all by default"),
        Flag.optional
      ),
      store: Flag.String("store").pipe(
        Flag.withDescription(
          "The SQLite file of the sessions, made by heddle serve or heddle call; required"
        ),
        Flag.optional
      ),
      principal,
      isJson
    },
    ({ action, id: given, isJson, module, next, principal, query, status: filter, store }) =>
      Effect.gen(function*() {
        if (Option.isNone(store)) {
          return yield* Problems.problem("--store is missing; name the file of the sessions with --store FILE")
        }
        const loaded = yield* Definitions.load(module)
        const done = Effect.gen(function*() {
          if (action === "list") {
            if (Option.isSome(given)) {
              return yield* Problems.problem("list takes no id; show prints one session")
            }
            const search = yield* Operating.searchOf({ next, query, status: filter })
            return yield* Operating.list(loaded, { isJson, principal, search })
          }
          if (Option.isSome(filter)) return yield* Problems.problem("--status is an option of list")
          if (Option.isSome(next)) return yield* Problems.problem("--next is an option of list")
          if (Option.isSome(query)) return yield* Problems.problem("--query is an option of list")
          if (Option.isNone(given)) return yield* Problems.problem(`${action} needs a session id`)
          const named = { id: given.value, principal }
          yield* Conversations.checkId(named.id)
          switch (action) {
            case "show":
              return yield* Operating.show(named, isJson)
            case "stop":
              return yield* Operating.stop(named, isJson)
            case "revoke":
              return yield* Operating.revoke(named, isJson)
            case "delete":
              return yield* Operating.remove(named, isJson)
            case "recover": {
              const agent = yield* Definitions.agentOf(loaded, yield* Operating.broken(named))
              const run = Conversations.run(loaded, { ...named, agent, isStored: true }, stop, {
                isRetry: true,
                isJson
              })
              return yield* Effect.provide(run, Definitions.layerOf(loaded))
            }
          }
        })
        onExit(yield* Effect.provide(done, Stores.existing(store.value)))
      })
  ).pipe(
    Command.withDescription(
      "Lists, shows, recovers, stops and deletes the sessions in a store, and revokes their claims."
    )
  )

const command = (stop: Stop, onExit: (code: number) => void) =>
  Command.make("heddle").pipe(
    Command.withDescription("Serves agents, calls them in a terminal, and manages their sessions."),
    Command.withSubcommands([serve(stop, onExit), call(stop, onExit), sessions(stop, onExit)])
  )

/** Leaves the report of an invalid invocation, without its help page, to {@link lineOf}. */
const presenter = CliOutput.layerPresenter({
  present: (event) => event._tag === "InvalidInvocation" ? Effect.void : CliOutput.defaultPresenter.present(event)
})

/** Returns the arguments, with `help` and `version` replaced by the flags. */
const argumentsOf = (args: ReadonlyArray<string>): ReadonlyArray<string> => {
  const [first, ...rest] = args
  if (first === "help") return [...rest, "--help"]
  return first === "version" ? ["--version", ...rest] : args
}

/** Tells whether an action is in the module's position: then the module is missing, not the action. */
const isActionFirst = (args: ReadonlyArray<string>, error: CliError.CliError): boolean => {
  const isNamed = (words: ReadonlyArray<string>) => words.some((word) => actions.some((action) => action === word))
  switch (error._tag) {
    case "MissingArgument":
      return error.argument === "action" && isNamed(args.slice(1))
    case "InvalidValue":
      return error.option === "action" && isNamed(args.slice(1, args.indexOf(error.value)))
    default:
      return false
  }
}

/** Describes a mistake in an invocation, with a fix if a word is missing. */
const mistakeOf = (args: ReadonlyArray<string>, error: CliError.CliError): string => {
  const [name = ""] = args
  if (isActionFirst(args, error) || error._tag === "MissingArgument" && error.argument === "module") {
    const rest = { call: " TEXT", sessions: " ACTION --store FILE" }[name] ?? ""
    return `the module is missing: heddle ${name} MODULE${rest}, where MODULE is ${moduleIs}`
  }
  return error._tag === "MissingArgument" && error.argument === "action"
    ? `the action is missing; give one of: ${actions.join(", ")}`
    : Problems.detailOf(error)
}

const lineOf = (args: ReadonlyArray<string>, error: unknown): string =>
  CliError.isCliError(error) && error._tag === "ShowHelp" && error.errors.length === 0
    ? "name a command: serve, call or sessions"
    : CliError.isCliError(error) && error._tag === "ShowHelp"
    ? `${error.errors.map((each) => mistakeOf(args, each)).join("; ")} (see --help)`
    : Problems.detailOf(error)

/** Runs a command line. Succeeds with the exit code. */
export const run = (given: ReadonlyArray<string>, stop: Stop) =>
  Effect.gen(function*() {
    let code = 0
    const onExit = (own: number) => void (code = own)
    const args = argumentsOf(given)
    yield* Command.runWith(command(stop, onExit), { version })(args).pipe(
      Effect.catch((error) =>
        isQuitError(error)
          ? Effect.interrupt
          : Effect.map(
            Console.error(`heddle: ${lineOf(args, error)}`),
            () => onExit(error instanceof Problems.Problem ? error.code ?? 1 : 1)
          )
      )
    )
    return code
  }).pipe(Effect.provide(presenter))

/** Runs the command line of this process. */
export const main = (): void => {
  const stop = new Stop()
  // Writing fails after a reader such as `| head` has left: without a listener, the failure would end the process.
  process.stdout.on("error", () => {})
  const program = run(process.argv.slice(2), stop).pipe(
    Effect.provide(NodeServices.layer),
    Effect.provideService(Logger.LogToStderr, true)
  )
  runMain(program, stop)
}
