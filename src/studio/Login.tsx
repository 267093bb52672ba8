/** The form for an access token. Beside the form, the page keeps its content and all typed text. */
import { type ReactNode, useEffect, useRef } from "react"
import type * as Client from "./data/client.ts"

/** The form for an access token. */
export const Login = ({ login, onToken }: {
  readonly login: Client.Login
  readonly onToken: (token: string) => void
}): ReactNode => {
  const field = useRef<HTMLInputElement>(null)
  useEffect(() => field.current?.focus(), [])
  return (
    <form
      id="login"
      className={login.isAgain ? "login again" : "login"}
      onSubmit={(event) => {
        event.preventDefault()
        const token = field.current?.value.trim() ?? ""
        if (token !== "") onToken(token)
      }}
    >
      {!login.isAgain && <h1 className="hidden">Studio</h1>}
      <label htmlFor="token">Access token</label>
      <div className="row">
        <input
          ref={field}
          id="token"
          type="password"
          autoComplete="off"
          spellCheck={false}
          aria-describedby="login-note"
        />
        <button className="main">Continue</button>
      </div>
      <p id="login-note" role="status">{login.note}</p>
    </form>
  )
}
