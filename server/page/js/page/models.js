const STATES = {
    starting: "starting",
    restarting: "coming back",
    failed: "failed to load",
    stopped: "stopped",
};
/** Fill the list, keeping the choice. Returns the chosen model. */
export function listModels(select, models) {
    const chosen = select.value;
    select.replaceChildren(...models.map(({ name, state }) => {
        const words = STATES[state];
        return new Option(words === undefined ? name : `${name} (${words})`, name, false, name === chosen);
    }));
    select.disabled = models.length === 0;
    return models.find(({ name }) => name === select.value) ?? null;
}
