// The token of the run: from the link's fragment, which no browser sends to a server, or typed. It stays in this tab, and
// is sent to the gateway alone.

const KEY = "streamrl-token";

/** Take a token out of the address bar. Says whether there was one. */
export function takeFromLink() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return false;
  history.replaceState(null, "", location.pathname);
  keep(given);
  return true;
}

export function keep(token) {
  sessionStorage.setItem(KEY, token.trim());
}

export function forget() {
  sessionStorage.removeItem(KEY);
}

/** The token; null when there is none. */
export function token() {
  return sessionStorage.getItem(KEY);
}
