# The live service: `gpssm stream` from one Redis Stream to another.
#
#     docker build --tag gpssm .
#     docker run --env GPSSM_REDIS_URL=redis://host:6379 --volume gpssm:/data gpssm
#
# The address is read from the environment, where a password is not seen by other users. Stopped (SIGTERM), it saves a last
# checkpoint and ends; started again with the same volume, it goes on where it was, with the programs it has compiled.
# There is no health check: the service answers nobody, and a process that cannot go on ends, for `--restart on-failure`.

FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[cli,live]'

FROM python:3.12-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index /wheels/*.whl \
    && useradd --uid 10001 --create-home gpssm \
    && install --directory --owner gpssm --group gpssm /data
USER 10001
WORKDIR /data
VOLUME /data
ENV GPSSM_CACHE=/data/compiled \
    GPSSM_REDIS_URL=redis://redis:6379 \
    PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
# Exec form: the signal reaches gpssm itself.
ENTRYPOINT ["gpssm"]
CMD ["stream", "--in", "samples", "--out", "estimates", "--checkpoint", "/data/live.gpssm"]
