// The state: one flat object of strings, equal to the page's query. What is absent has its default.
// The view (tab, what a curve shows) is the hash: it changes how an answer is shown, not what is asked.

const OWN = new Set(["token"]);

export function readQuery(search = location.search) {
  return Object.fromEntries([...new URLSearchParams(search)].filter(([key]) => !OWN.has(key)));
}

export function readView(hash = location.hash) {
  return Object.fromEntries(new URLSearchParams(hash.slice(1)));
}

// URLSearchParams writes "," as %2C and more such; a value of a query may hold them, and is read by people.
const readable = (parameters) => parameters.toString().replaceAll(/%(2C|3A|2F|3B|3D)/g, decodeURIComponent);

export function address(state, view, stamp = {}) {
  const query = readable(new URLSearchParams({ ...state, ...stamp }));
  const hash = readable(new URLSearchParams(view));
  return location.pathname + (query && `?${query}`) + (hash && `#${hash}`);
}

// A state with a key set, or taken off where the value is empty.
export function changed(state, key, value) {
  const { [key]: _, ...rest } = state;
  return value === "" || value == null ? rest : { ...rest, [key]: value };
}
