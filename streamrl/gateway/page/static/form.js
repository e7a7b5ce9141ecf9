// Asks a person for the token.

import { forget, keep } from "./session.js";

const WORDS = {
  missing_api_key: "",
  invalid_api_key: "That is not a token of this run.",
  insufficient_scope: "That token is for something else: the page wants the one for control.",
};

/** Wait for a token; refused: why the one before was not taken, as a Refused. */
export async function askForToken(refused) {
  forget();
  const form = document.getElementById("token-form");
  const input = document.getElementById("token");
  document.getElementById("token-wrong").textContent = refused ? (WORDS[refused.code] ?? refused.message) : "";
  form.hidden = false;
  document.getElementById("run").hidden = true;
  input.value = "";
  input.focus();
  await new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      keep(input.value);
      resolve();
    };
  });
  input.value = "";
  form.hidden = true;
}
